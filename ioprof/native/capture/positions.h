/* The position of an open file: where a plain read begins, and which thread may use it now.
 *
 * Other threads must not see a plain read between its two halves: they would read from the middle
 * of it. The owner of a file, the thread that opened it, marks it busy; the first other thread that
 * uses its position marks it contended, permanently, and waits for the owner as it would wait for
 * the kernel's lock on the position. */
#ifndef IOPROF_POSITIONS_H
#define IOPROF_POSITIONS_H

#include "open_files.h"

#pragma GCC visibility push(hidden)

void wait_for_owner(struct open_file *file);
int64_t ask_position(int descriptor);

/* Whether this thread may make a plain read in two halves; if so, the position is locked. */
bool lock_position(struct open_file *file);

#pragma GCC visibility pop

static inline void unlock_position(struct open_file *file)
{
    if (flags_of(file) & FILE_BUSY)
        clear_flags(file, FILE_BUSY);
}

/* Before this thread uses a file's position. */
static inline void wait_for_position(struct open_file *file)
{
    if (GET(file, owner) != this_thread() &&
        (flags_of(file) & (FILE_CONTENDED | FILE_BUSY)) != FILE_CONTENDED)
        wait_for_owner(file);
}

/* Where a plain read would begin, which this thread is about to make. */
static inline int64_t position_of(int descriptor, struct open_file *file)
{
    wait_for_position(file);
    if ((flags_of(file) & FILE_TRACKED) && !is_shared(file))
        return GET(file, position);
    return ask_position(descriptor);
}

/* A stream moves its descriptor's position as it pleases. */
static inline void untrack_position(int descriptor)
{
    struct open_file *file = known_file(descriptor);
    if (file != NULL && (flags_of(file) & FILE_TRACKED))
        clear_flags(file, FILE_TRACKED);
}

#endif
