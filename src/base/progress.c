#include "base/progress.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/units.h"

#define BAR_WIDTH 20
#define SILENT_NS (2 * NS_PER_S)
#define REDRAW_NS (100 * NS_PER_MS)

struct progress {
	char title[40];
	int64_t began_ns, drawn_ns;
	char phase[40], note[40];
	int64_t phase_began_ns; /* the ETA is of the phase: phases differ in speed */
};

struct progress *progress_new(const char *title)
{
	struct progress *p = isatty(STDERR_FILENO) ? calloc(1, sizeof *p) : NULL;
	if (!p)
		return NULL;
	snprintf(p->title, sizeof p->title, "%s", title);
	p->began_ns = clock_steady_ns();
	return p;
}

char *progress_line(char *out, size_t size, const char *title, const char *phase, uint64_t done, uint64_t all, int64_t elapsed_ns)
{
	char n[UNITS_TEXT], of[UNITS_TEXT], bar[BAR_WIDTH + 1], eta[32] = "";
	count_format(n, done);
	if (all == 0) {
		snprintf(out, size, "%s  %s  %s", title, phase, n);
		return out;
	}
	double part = done < all ? (double)done / (double)all : 1;
	size_t filled = (size_t)(part * BAR_WIDTH);
	memset(bar, ' ', BAR_WIDTH);
	memset(bar, '=', filled);
	if (filled < BAR_WIDTH)
		bar[filled] = '>';
	bar[BAR_WIDTH] = 0;
	if (part > 0) {
		double left_s = (double)elapsed_ns / NS_PER_S * (1 - part) / part;
		uint64_t s = left_s < 360000 ? (uint64_t)(left_s + 0.5) : 360000;
		if (s >= 3600)
			snprintf(eta, sizeof eta, "  ETA %u:%02u:%02u", (unsigned)(s / 3600), (unsigned)(s / 60 % 60),
				 (unsigned)(s % 60));
		else
			snprintf(eta, sizeof eta, "  ETA %u:%02u", (unsigned)(s / 60), (unsigned)(s % 60));
	}
	snprintf(out, size, "%s  %s  [%s]  %2d %%  %s / %s%s", title, phase, bar, (int)(part * 100), n, count_format(of, all),
		 eta);
	return out;
}

void progress_show(struct progress *p, const char *phase, uint64_t done, uint64_t all)
{
	char line[200];
	if (!p)
		return;
	int64_t now = clock_steady_ns();
	if (strncmp(p->phase, phase, sizeof p->phase - 1) != 0 || !p->phase_began_ns) {
		snprintf(p->phase, sizeof p->phase, "%s", phase);
		p->phase_began_ns = now;
	}
	if (now - p->began_ns < SILENT_NS || now - p->drawn_ns < REDRAW_NS)
		return;
	p->drawn_ns = now;
	progress_line(line, sizeof line, p->title, p->phase, done, all, now - p->phase_began_ns);
	fprintf(stderr, "\r\033[K%s%s%s", line, p->note[0] ? "  " : "", p->note);
}

void progress_note(struct progress *p, const char *note)
{
	if (p)
		snprintf(p->note, sizeof p->note, "%s", note);
}

void progress_end(struct progress *p)
{
	if (p && p->drawn_ns)
		fprintf(stderr, "\r\033[K");
	free(p);
}
