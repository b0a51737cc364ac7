/* Files that are mapped, and what the kernel is asked to fetch of them ahead.
 *
 * What is then read is read by page faults, which only the kernel sees. But madvise(MADV_WILLNEED) names no file, has the pages
 * fetched before anybody touches them, and leaves no fault to be seen: so DALI reads by default. What it fetched is told here. */
#ifndef IOPROF_MAPPED_H
#define IOPROF_MAPPED_H

#include "reads.h"

#define MAPPINGS 8 /* whoever asks for a mapping's pages has just made it, mostly */

/* A file's part that this thread has mapped. */
struct mapping {
    uintptr_t start, length;
    int64_t offset;
    int32_t path;
    uint32_t generation; /* of the recording that knows the path; 0: none */
};

static __thread struct mapping mappings[MAPPINGS];
static __thread unsigned mappings_made;

/* That a file was mapped is told as an open. */
static void end_mmap(void *mapped, int descriptor, int64_t start, size_t length, off_t offset)
{
    int64_t end = clock_now();
    struct file *file = regular_file(descriptor);
    if (file == NULL)
        return;
    int saved_errno = errno;
    hands_off();
    int32_t path = GET(file, path);
    mappings[mappings_made++ % MAPPINGS] =
        (struct mapping){(uintptr_t)mapped, length, offset, path, GET(live, generation)};
    tell(&(struct told){start, end, (int64_t)length, offset, path, NAME("mmap"), KIND_OPEN, SOURCE_NONE});
    hands_on();
    errno = saved_errno;
}

/* The last mapping of this thread that holds the address; NULL: it was made elsewhere, or long ago. */
static const struct mapping *mapping_of(uintptr_t address)
{
    for (unsigned back = 1; back <= MAPPINGS; back++) {
        const struct mapping *mapping = &mappings[(mappings_made - back) % MAPPINGS];
        if (mapping->generation == GET(live, generation) && address - mapping->start < mapping->length)
            return mapping;
    }
    return NULL;
}

static inline bool fetches(int advice)
{
    const int populate_read = 22; /* MADV_POPULATE_READ, Linux 5.14 */
    return advice == MADV_WILLNEED || advice == populate_read;
}

static int32_t mapped_path(const struct mapping *mapping)
{
    return mapping == NULL ? -1 : mapping->path;
}

/* Bytes that were fetched meanwhile are a read from storage, whoever touches them later. The kernel's books of reads do not have
 * it, and so ours do not either. */
static void end_advice(void *address, int64_t start, int64_t blocks)
{
    const struct mapping *mapping = mapping_of((uintptr_t)address);
    if (blocks <= 0) {
        END_SHORT(start, "madvise", mapped_path(mapping));
        return;
    }
    int64_t end = clock_now();
    int64_t offset = mapping == NULL ? -1 : mapping->offset + (int64_t)((uintptr_t)address - mapping->start);
    int saved_errno = errno;
    hands_off();
    tell(&(struct told){start, end, blocks * 512, offset, mapped_path(mapping), NAME("madvise"), KIND_READ, SOURCE_STORAGE});
    compare_when_due(end);
    hands_on();
    errno = saved_errno;
}

#endif
