#include "cache/names.h"
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

uint64_t cache_key_hash(const struct cache_key *k) { return XXH3_64bits(k, sizeof *k); }

static char *hex_put(char *out, uint64_t value, int digits)
{
	for (int i = digits - 1; i >= 0; i--, value >>= 4)
		out[i] = "0123456789abcdef"[value & 15];
	return out + digits;
}

static bool hex_take(const char **in, int digits, uint64_t *out)
{
	uint64_t value = 0;
	for (int i = 0; i < digits; i++, ++*in) {
		char c = **in;
		if (c >= '0' && c <= '9')
			value = value << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (uint64_t)(c - 'a' + 10);
		else
			return false;
	}
	*out = value;
	return true;
}

/* A dash, then a number. */
static bool field_take(const char **in, int digits, uint64_t *out) { return *(*in) == '-' && (++*in, hex_take(in, digits, out)); }

static char *field_put(char *out, uint64_t value, int digits)
{
	*out++ = '-';
	return hex_put(out, value, digits);
}

void cache_name_make(char out[CACHE_NAME], char letter, const struct cache_key *k)
{
	*out++ = letter;
	*out++ = '-';
	for (int i = 0; i < 16; i++)
		out = hex_put(out, k->store[i], 2);
	if (letter != 'o')
		out = field_put(out, k->volume, 8);
	out = field_put(out, k->id, 16);
	*out = 0;
}

char cache_name_parse(const char *name, struct cache_key *out)
{
	char letter = *name;
	uint64_t byte, volume = 0;
	if ((letter != 'o' && letter != 'f' && letter != 'm') || name[1] != '-')
		return 0;
	name += 2;
	*out = (struct cache_key){ .kind = letter == 'o' ? 'o' : 'f' };
	for (int i = 0; i < 16; i++) {
		if (!hex_take(&name, 2, &byte))
			return 0;
		out->store[i] = (uint8_t)byte;
	}
	if (letter != 'o' && !field_take(&name, 8, &volume))
		return 0;
	out->volume = (uint32_t)volume;
	return field_take(&name, 16, &out->id) && !*name ? letter : 0;
}

void cache_temp_make(char out[CACHE_NAME], char letter, const struct cache_temp *t)
{
	*out++ = letter;
	out = field_put(out, t->slot, 2);
	out = field_put(out, t->nonce, 16);
	out = field_put(out, t->number, 16);
	*out = 0;
}

char cache_temp_parse(const char *name, struct cache_temp *out)
{
	char letter = *name;
	uint64_t slot;
	if (letter != 't' && letter != 's')
		return 0;
	name++;
	if (!field_take(&name, 2, &slot) || !field_take(&name, 16, &out->nonce) || !field_take(&name, 16, &out->number) || *name)
		return 0;
	out->slot = (unsigned)slot;
	return letter;
}

void cache_bucket_name(char out[4], unsigned bucket) { *hex_put(out, bucket, 2) = 0; }
