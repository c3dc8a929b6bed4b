#include <string.h>
#include "place.h"
#include "cache/names.h"

static struct cache_key key_of(uint32_t kind)
{
	struct cache_key k = { .id = 0x123456789abcdef0, .volume = kind == 'f' ? 0xfffffffe : 0, .kind = kind };
	memcpy(k.store,
	       "\x00\xff\x7f"
	       "3456789abcdef",
	       16);
	return k;
}

static void a_name_says_what_the_key_was(void **state)
{
	char name[CACHE_NAME];
	for (const char *letter = "ofm"; *letter; letter++) {
		struct cache_key key = key_of(*letter == 'o' ? 'o' : 'f'), back;
		cache_name_make(name, *letter, &key);
		assert_int_equal(cache_name_parse(name, &back), *letter);
		assert_memory_equal(&key, &back, sizeof key);
	}
}

static void a_temporary_name_says_whose_it_is(void **state)
{
	char name[CACHE_NAME];
	struct cache_temp t = { .slot = 255, .nonce = UINT64_MAX, .number = 7 }, back;
	struct cache_key key;
	cache_temp_make(name, 's', &t);
	assert_int_equal(cache_temp_parse(name, &back), 's');
	assert_true(back.slot == 255 && back.nonce == UINT64_MAX && back.number == 7);
	assert_int_equal(cache_name_parse(name, &key), 0);
}

static void any_change_of_a_name_makes_it_somebody_elses(void **state)
{
	char name[CACHE_NAME + 1], changed[CACHE_NAME + 1];
	struct cache_key key = key_of('f'), back;
	cache_name_make(name, 'f', &key);
	size_t length = strlen(name);
	for (size_t i = 0; i <= length; i++) {
		memcpy(changed, name, sizeof changed);
		changed[i] = 0;
		assert_true(i == length || !cache_name_parse(changed, &back));
		for (const char *c = "GZ./- A\n\xff"; *c; c++) {
			changed[i] = *c;
			changed[length + 1] = 0;
			assert_true(name[i] == *c || !cache_name_parse(changed, &back));
		}
	}
	assert_int_equal(cache_name_parse("", &back), 0);
	assert_int_equal(cache_name_parse("lost+found", &back), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_says_what_the_key_was),
		cmocka_unit_test(a_temporary_name_says_whose_it_is),
		cmocka_unit_test(any_change_of_a_name_makes_it_somebody_elses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
