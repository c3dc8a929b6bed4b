/* The log: one line an event on standard error, "MM/DD/YYYY HH:MM:SS ZONE level text"
 * (without the time under systemd, which adds its own).  Any thread.  Lines are
 * written whole.  Control characters in what is logged are escaped, so that a
 * file name cannot forge a line. */
#pragma once
#include <stdbool.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR, LOG_LEVEL_OFF };

void log_set_level(enum log_level level); /* INFO at first */
enum log_level log_get_level(void);
const char *log_level_name(enum log_level level);
int log_level_parse(const char *name, enum log_level *out);
int log_to_file(const char *path); /* append there instead; 0 or -errno */
/* For as long as lines go to standard error they are appended to this file, too, which is made for the first one; where it cannot
 * be made, they are not.  Before there are other threads; the path lives as long as they are logged. */
void log_copy_to_file(const char *path);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
