/* Bytes of files that reads of this process had fetched from storage, and that no read has returned
 * yet.
 *
 * Known per file and not per descriptor: a library may open a shard for each sample, and read one
 * range of it each time. Reads may leave gaps: what they skip stays known until it is read, or
 * until newer ranges of the file need its place. Races are accepted: a thread that finds the entry
 * of a file in use does without it. */
#ifndef IOPROF_READAHEAD_H
#define IOPROF_READAHEAD_H

#include "open_files.h"

#define AHEAD_FILES 128
#define AHEAD_RANGES 512 /* of 128 KiB each they cover a shard of 64 MiB */

/* What is known of one file. */
struct file_ahead {
    _Atomic uint64_t key; /* of the file; 0: none */
    _Atomic uint32_t is_busy;
    _Atomic uint32_t used; /* ranges from here on are empty */
    uint32_t oldest;
    struct {
        _Atomic int64_t start, end;
    } ranges[AHEAD_RANGES];
};

#pragma GCC visibility push(hidden)

extern table_pages files_ahead;

/* A number of the file that a descriptor has open, never 0. A forked child has other numbers than
 * its parent: what that had fetched is not the child's. */
uint64_t ahead_key(const struct stat *status);

/* Whether a range of the file has bytes in common with a read; without a lock, so that a wrong
 * answer is possible, which costs time. */
bool has_range(const struct open_file *file, int64_t position, int64_t bytes);

/* Before a read of `bytes` at `position` is decided upon: removes what had been fetched for it, and
 * returns `read_facts.readahead`. */
int64_t take_readahead(struct open_file *file, int64_t position, int64_t bytes);

/* Afterwards: `readahead` bytes (`read_sources.readahead`) behind the read were fetched and not
 * read yet. */
void add_readahead(struct open_file *file, int64_t position, int64_t bytes, int64_t readahead);

#pragma GCC visibility pop

/* NULL: nothing was entered of any file. */
static inline struct file_ahead *ahead_of(const struct open_file *file)
{
    struct file_ahead *files = mapped_table(&files_ahead);
    return files == NULL ? NULL : &files[GET(file, key) % AHEAD_FILES];
}

/* Whether a read may find bytes that were fetched before. */
static inline bool may_have_readahead(const struct open_file *file, int64_t position, int64_t bytes)
{
    const struct file_ahead *ahead = ahead_of(file);
    return GET(file, readahead) != 0 ||
           (ahead != NULL && GET(ahead, used) != 0 && has_range(file, position, bytes));
}

#endif
