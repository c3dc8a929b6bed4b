/* Lines that come by the control socket of a mount. */
#include <errno.h>
#include "client/control_request.h"
#include "client/warm.h"
#include "tests/fuzz/fuzz.h"

static struct control_request request;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *why;
	int status = control_decode((const char *)data, size, &request, &why);
	REQUIRE(status == 0 || status == -EBADMSG);
	REQUIRE(!status == !why);
	if (status)
		return 0;
	REQUIRE(request.count <= CONTROL_FILES);
	REQUIRE(request.op != CONTROL_WARM || (request.flags & (WARM_PIN | WARM_UNPIN)) != (WARM_PIN | WARM_UNPIN));
	for (uint32_t i = 0; i < request.count; i++)
		REQUIRE(request.files[i].inode && request.files[i].from <= request.files[i].to &&
			request.files[i].to <= INT64_MAX);
	return 0;
}
