/* What people and files bring: settings, sizes, durations, counts, compression
 * names, store keys, and anything that is logged. */
#include <errno.h>
#include "base/settings.h"
#include "base/text.h"
#include "base/units.h"
#include "block/extent.h"
#include "store/store.h"
#include "tests/fuzz/fuzz.h"

static int setting_take(void *context, const char *name, const char *value, char *why, size_t why_size)
{
	size_t *sum = context;
	*sum += strlen(name) + strlen(value);
	REQUIRE(*name);
	snprintf(why, why_size, "%s", value);
	return value[0] == '!' ? -EINVAL : 0;
}

static void settings_try(const char *text, size_t size)
{
	char error[100] = "";
	size_t sum = 0;
	int status = settings_parse("file", text, size, setting_take, &sum, error, sizeof error);
	REQUIRE(sum <= size);
	REQUIRE((status == 0) == (error[0] == 0));
}

static void units_try(const char *text)
{
	char shown[UNITS_TEXT];
	uint64_t value, back;
	enum codec codec;
	int level;
	if (size_parse(text, &value) == 0)
		REQUIRE(strlen(size_format(shown, value)) < UNITS_TEXT);
	if (duration_parse(text, &value) == 0)
		REQUIRE(duration_parse(duration_format(shown, value), &back) == 0 && back == value);
	if (count_parse(text, &value) == 0)
		REQUIRE(count_parse(count_format(shown, value), &back) == 0 && back == value);
	if (codec_parse(text, &codec, &level) == 0)
		REQUIRE(codec <= CODEC_ZSTD && level >= 0 && level <= 19);
	if (store_key_check(text) == 0)
		REQUIRE(strlen(text) <= 200 && text[0] != '/' && !strstr(text, "/../") && strncmp(text, "../", 3) != 0);
	date_format(shown, size_parse(text, &value) == 0 ? (int64_t)value : 0);
}

static void escape_try(const char *text, size_t size)
{
	char out[40];
	for (size_t room = 4; room <= sizeof out; room += 9) {
		size_t n = text_escape(out, room, text, size);
		REQUIRE(n < room && strlen(out) == n);
		for (size_t i = 0; i < n;) {
			size_t step = text_utf8_length(out + i, n - i);
			REQUIRE(step > 0 && (uint8_t)out[i] >= ' ' && out[i] != 0x7f);
			i += step;
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char text[300];
	size_t n = size < sizeof text - 1 ? size : sizeof text - 1;
	settings_try((const char *)data, size);
	escape_try((const char *)data, size);
	memcpy(text, data, n);
	text[n] = 0;
	units_try(text);
	return 0;
}
