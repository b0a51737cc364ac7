#include "readahead.h"

#include "source.h"

table_pages files_ahead;

uint64_t ahead_key(const struct stat *status)
{
    /* Odd multipliers near fractions of 2^64 spread numbers that are near each other (Knuth, The
     * Art of Computer Programming, 6.4). */
    uint64_t key = (uint64_t)status->st_ino * 0x9e3779b97f4a7c15u +
                   (uint64_t)status->st_dev * 0xc2b2ae3d27d4eb4fu +
                   GET(process, generation) * 0x165667b19e3779f9u;
    return (key ^ key >> 29) | 1u << 31;
}

static bool lock_ahead(struct file_ahead *ahead)
{
    return atomic_exchange_explicit(&ahead->is_busy, 1, memory_order_acquire) == 0;
}

static void unlock_ahead(struct file_ahead *ahead)
{
    uint32_t used = GET(ahead, used);
    while (used > 0 && GET(ahead, ranges[used - 1].end) <= GET(ahead, ranges[used - 1].start))
        used--;
    SET(ahead, used, used);
    atomic_store_explicit(&ahead->is_busy, 0, memory_order_release);
}

/* Enters a range, as part of one that ends where it begins or later. */
static void enter_range(struct file_ahead *ahead, int64_t start, int64_t end)
{
    uint32_t free = GET(ahead, used);
    for (uint32_t place = 0; place < GET(ahead, used); place++) {
        const int64_t first = GET(ahead, ranges[place].start), last = GET(ahead, ranges[place].end);
        if (last <= first) {
            free = place;
        } else if (first <= start && start <= last) {
            SET(ahead, ranges[place].end, last + (end - start));
            return;
        }
    }
    if (free == AHEAD_RANGES)
        free = ahead->oldest++ % AHEAD_RANGES;
    if (free == GET(ahead, used))
        SET(ahead, used, free + 1);
    SET(ahead, ranges[free].start, start);
    SET(ahead, ranges[free].end, end);
}

/* Of the ranges, the bytes that a read returned or that follow it without a gap; they are removed,
 * all but those that only follow a part which was not fetched. */
static int64_t remove_range(struct file_ahead *ahead, int64_t position, int64_t bytes)
{
    for (uint32_t place = 0; place < GET(ahead, used); place++) {
        const int64_t start = GET(ahead, ranges[place].start), end = GET(ahead, ranges[place].end),
                      stop = position + bytes;
        if (end <= start || end <= position || start >= stop)
            continue;
        SET(ahead, ranges[place].end, start < position ? position : start);
        if (start <= position)
            return end - position;
        if (end > stop) {
            SET(ahead, ranges[place].start, stop);
            SET(ahead, ranges[place].end, end);
        }
        return (end < stop ? end : stop) - start;
    }
    return 0;
}

bool has_range(const struct open_file *file, int64_t position, int64_t bytes)
{
    const struct file_ahead *ahead = ahead_of(file);
    bool found = false;
    if (ahead == NULL || GET(ahead, key) != GET(file, key))
        return false;
    for (uint32_t place = 0; place < GET(ahead, used); place++)
        found |= GET(ahead, ranges[place].end) > position &&
                 GET(ahead, ranges[place].start) < position + bytes;
    return found;
}

int64_t take_readahead(struct open_file *file, int64_t position, int64_t bytes)
{
    struct file_ahead *ahead = ahead_of(file);
    int64_t found = 0;
    if (ahead != NULL && GET(ahead, used) != 0 && GET(ahead, key) == GET(file, key) &&
        lock_ahead(ahead)) {
        found = remove_range(ahead, position, bytes);
        unlock_ahead(ahead);
    }
    return found > 0 ? found : position == GET(file, next) ? GET(file, readahead) : 0;
}

void add_readahead(struct open_file *file, int64_t position, int64_t bytes, int64_t readahead)
{
    const int64_t stop = position + bytes, size = GET(file, size);
    SET(file, readahead, readahead == READAHEAD_USED_UP);
    SET(file, next, stop);
    if (size >= 0 && readahead > size - stop)
        readahead = size - stop; /* the last page is fetched as a whole */
    if (readahead <= READAHEAD_USED_UP || GET(file, key) == 0 ||
        map_table(&files_ahead, AHEAD_FILES * sizeof(struct file_ahead)) == NULL)
        return;
    struct file_ahead *ahead = ahead_of(file);
    if (!lock_ahead(ahead))
        return;
    if (GET(ahead, key) != GET(file, key)) {
        SET(ahead, used, 0);
        SET(ahead, key, GET(file, key));
    }
    enter_range(ahead, stop, stop + readahead);
    unlock_ahead(ahead);
}
