/* Contents: 32 KiB of noise over and over, each time changed by a word of its own.
 *
 * Word k of the file with seed s is noise[k mod 4096] xor mix(s, k / 4096).  A compressor finds
 * nothing to repeat in it, and the loops below are a load, a xor and a store for each vector. */
#include "load.h"
#include <stdlib.h>
#include <string.h>

#define NOISE_WORDS 4096
#define WORD sizeof(uint64_t)

struct noise {
	uint64_t words[NOISE_WORDS];
};

const struct noise *noise_make(void)
{
	struct noise *n = malloc(sizeof(*n));
	uint64_t state = 2026;

	if (!n)
		die("cannot get memory");
	for (size_t i = 0; i < NOISE_WORDS; i++)
		n->words[i] = random_next(&state);
	return n;
}

static uint64_t mask_of(uint64_t seed, uint64_t block)
{
	uint64_t state = (seed << 24) ^ block;

	return random_next(&state);
}

static uint64_t word_at(const struct noise *n, uint64_t seed, uint64_t word)
{
	return n->words[word % NOISE_WORDS] ^ mask_of(seed, word / NOISE_WORDS);
}

/* How many words from `word` on have the same mask, of `left`. */
static size_t run_length(uint64_t word, size_t left)
{
	size_t run = NOISE_WORDS - word % NOISE_WORDS;

	return run < left ? run : left;
}

void content_fill(const struct noise *n, uint64_t seed, uint64_t at, uint8_t *out, size_t size)
{
	uint64_t word = at / WORD, *to = (uint64_t *)out, last;
	size_t left = size / WORD;

	while (left) {
		const uint64_t *from = n->words + word % NOISE_WORDS;
		uint64_t mask = mask_of(seed, word / NOISE_WORDS);
		size_t run = run_length(word, left);

		for (size_t i = 0; i < run; i++)
			to[i] = from[i] ^ mask;
		to += run;
		word += run;
		left -= run;
	}
	last = word_at(n, seed, word);
	memcpy(to, &last, size % WORD);
}

bool content_same(const struct noise *n, uint64_t seed, uint64_t at, const uint8_t *data, size_t size)
{
	uint64_t word = at / WORD, different = 0, last;
	const uint64_t *have = (const uint64_t *)data;
	size_t left = size / WORD;

	while (left) {
		const uint64_t *from = n->words + word % NOISE_WORDS;
		uint64_t mask = mask_of(seed, word / NOISE_WORDS);
		size_t run = run_length(word, left);

		for (size_t i = 0; i < run; i++)
			different |= have[i] ^ from[i] ^ mask;
		have += run;
		word += run;
		left -= run;
	}
	last = word_at(n, seed, word);
	return !different && !memcmp(have, &last, size % WORD);
}

bool content_ends_same(const struct noise *n, uint64_t seed, uint64_t at, const uint8_t *data, size_t size)
{
	size_t last = (size / WORD - 1) * WORD;

	if (size < WORD)
		return content_same(n, seed, at, data, size);
	return content_same(n, seed, at, data, WORD) && content_same(n, seed, at + last, data + last, WORD);
}
