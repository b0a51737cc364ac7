/* Absolute paths of what the job opens, as numbers of strings. */
#ifndef IOPROF_PATHS_H
#define IOPROF_PATHS_H

#include "string_table.h"

#define PAGE_BYTES 4096 /* the smallest page there is */
#define TEXT_PAGES 64

#pragma GCC visibility push(hidden)

/* Pages in which this thread had a path that the kernel could read. */
extern __thread uintptr_t text_pages[TEXT_PAGES];

/* The number of a path that was given to a call with a folder's descriptor, or -1. It is not
 * normalised: only the kernel knows where `..` leads. */
int32_t path_number(int folder, const char *path);

/* The path of an open descriptor, as the kernel knows it, into PATH_MAX bytes, and its length; 0:
 * it has none. */
size_t descriptor_path(int descriptor, char *into);

/* The number of that path; -1: it has none. */
int32_t descriptor_path_number(int descriptor);

/* After chdir: the working directory has to be asked for again. */
void forget_working_directory(void);

#pragma GCC visibility pop

/* The key of an absolute path that is about to be opened, so that the table's entry arrives from
 * memory while the kernel is busy: that took 0.1 µs of each open. Only the kernel knows whether
 * there is a path at the address at all, so that this is done only where there was one in the same
 * page before. */
static inline struct string_key path_key(const char *path)
{
    uintptr_t page = (uintptr_t)path / PAGE_BYTES;
    if (page == 0 || text_pages[page % TEXT_PAGES] != page || path[0] != '/')
        return NO_KEY;
    size_t room = PAGE_BYTES - (uintptr_t)path % PAGE_BYTES, length = strnlen(path, room);
    return length == room ? NO_KEY : string_key(path, length);
}

/* The number of a path that was opened. */
static inline int32_t opened_number(const struct string_key *key, int folder, const char *path)
{
    if (key->text != NULL)
        return key_number(key);
    text_pages[(uintptr_t)path / PAGE_BYTES % TEXT_PAGES] = (uintptr_t)path / PAGE_BYTES;
    return path_number(folder, path);
}

/* The spool's own files, which the Python part of ioprof opens in the same process, are not the
 * job's. */
static inline bool is_in_spool(const char *path)
{
    return path[0] == '/' && strncmp(path, spool, spool_length) == 0 &&
           (path[spool_length] == '/' || path[spool_length] == '\0');
}

#endif
