#include "cli/waiting.h"
#include <stdio.h>
#include "base/units.h"

const char *waiting_text(char out[WAITING_TEXT], const Wire__StatusReply *status)
{
	char size[UNITS_TEXT], count[UNITS_TEXT], date[UNITS_TEXT];

	if (!status->waiting_objects)
		return NULL;
	snprintf(out, WAITING_TEXT, "%s in %s, deleted by %s at the latest", size_format(size, status->waiting_bytes),
		 counted_format(count, status->waiting_objects, "object"), date_format(date, status->waiting_until_ns));
	return out;
}
