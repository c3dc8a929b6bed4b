/* What the fuzz targets share.  Each target is one decoder: it gets any bytes,
 * must neither crash nor read past them (AddressSanitizer and the undefined
 * behaviour sanitizer watch), and what it accepts must survive being written and
 * read again.  Where the decoder checks a checksum, the target makes it right,
 * so that what lies behind it is reached. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/bytes.h"
#include "base/cleanup.h"

#define REQUIRE(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
