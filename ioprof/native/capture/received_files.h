/* Files that a process wrote while it received from a socket: a download, whose readers wait for
 * the network in the end.
 *
 * Recorded as an `open` span of source `socket` when the file is closed or renamed: its bytes are
 * those that the process received between opening and closing the file, if that is at least half of
 * the file's size, and its name is the peer. Writes are not observed, so that this is no proof: it
 * says what happened at the same time. */
#ifndef IOPROF_RECEIVED_FILES_H
#define IOPROF_RECEIVED_FILES_H

#include "open_files.h"

#pragma GCC visibility push(hidden)

extern _Atomic uint32_t num_received_files;

/* `peer`: the number of its name. */
void count_received(int32_t peer, int64_t bytes);

/* A file was created to be written. */
void begin_created(int descriptor);

/* It is about to be closed. */
void end_created(int descriptor, struct open_file *file);

void rename_received_file(int from_folder, const char *from, int to_folder, const char *to);

#pragma GCC visibility pop

static inline bool has_received_files(void)
{
    return atomic_load_explicit(&num_received_files, memory_order_relaxed) > 0;
}

#endif
