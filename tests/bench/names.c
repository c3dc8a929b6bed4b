/* names: stats or opens every file of a list once, in random order, by several processes that start together.
 *
 *   names stat|open PROCESSES SEED < LIST        paths, one a line; prints how many a second */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX 64

struct shared {
	pthread_barrier_t start;
	double began[PROCESSES_MAX], ended[PROCESSES_MAX];
	int failed;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int touch(const char *path, int opens)
{
	struct stat st;
	int fd;

	if (!opens)
		return stat(path, &st);
	fd = open(path, O_RDONLY);
	return fd < 0 ? -1 : close(fd);
}

static void work(struct shared *s, int self, int processes, char **paths, size_t count, int opens)
{
	size_t from = count * (size_t)self / (size_t)processes, to = count * (size_t)(self + 1) / (size_t)processes;

	pthread_barrier_wait(&s->start);
	s->began[self] = now();
	for (size_t i = from; i < to; i++) {
		if (touch(paths[i], opens)) {
			perror(paths[i]);
			s->failed = 1;
			break;
		}
	}
	s->ended[self] = now();
	_exit(0);
}

static char **list_read(size_t *count)
{
	char **paths = NULL, *line = NULL;
	size_t room = 0, size = 0;
	ssize_t n;

	*count = 0;
	while ((n = getline(&line, &size, stdin)) > 0) {
		if (*count == room) {
			room = room ? room * 2 : 1024;
			paths = realloc(paths, room * sizeof(*paths));
			if (!paths)
				abort();
		}
		line[n - 1] = 0;
		paths[(*count)++] = strdup(line);
	}
	free(line);
	return paths;
}

int main(int argc, char **argv)
{
	int processes = argc == 4 ? atoi(argv[2]) : 0;
	double began = 0, ended = 0;
	pthread_barrierattr_t attr;
	struct shared *s;
	char **paths;
	size_t count;

	if (processes < 1 || processes > PROCESSES_MAX) {
		fprintf(stderr, "names stat|open PROCESSES SEED < LIST\n");
		return 2;
	}
	paths = list_read(&count);
	srandom((unsigned)atoi(argv[3]));
	for (size_t i = count; i > 1; i--) {
		size_t k = (size_t)random() % i;
		char *other = paths[k];

		paths[k] = paths[i - 1];
		paths[i - 1] = other;
	}
	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return 1;
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&s->start, &attr, (unsigned)processes);
	for (int i = 0; i < processes; i++)
		if (fork() == 0)
			work(s, i, processes, paths, count, !strcmp(argv[1], "open"));
	for (int i = 0; i < processes; i++)
		wait(NULL);
	for (int i = 0; i < processes; i++) {
		began = i == 0 || s->began[i] < began ? s->began[i] : began;
		ended = s->ended[i] > ended ? s->ended[i] : ended;
	}
	printf("%.0f\n", (double)count / (ended - began));
	return s->failed;
}
