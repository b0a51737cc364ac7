/* Programs that the job starts and that the library cannot be loaded into. */
#ifndef IOPROF_PROGRAMS_H
#define IOPROF_PROGRAMS_H

#define OTHER_CLASS "32-bit program"

#pragma GCC visibility push(hidden)

/* Why a program will not be recorded, one of schema.NOT_FOLLOWED; NULL: it will, or cannot be
 * examined. `path` as given to exec; without a slash it is searched in PATH. About 5 µs. */
const char *why_not_followed(const char *path);

#pragma GCC visibility pop

#endif
