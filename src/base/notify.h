/* sd_notify(3) without libsystemd: tells the service manager, if there is one. */
#pragma once
void notify_service_manager(const char *state); /* "READY=1", "STOPPING=1" */
