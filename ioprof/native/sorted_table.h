/* A sorted table of limits, in which values above 0 are found in a few steps: it is known where
 * each power of two stands. */

#ifndef IOPROF_SORTED_TABLE_H
#define IOPROF_SORTED_TABLE_H

#include <stdint.h>

typedef struct {
    const int64_t *values;
    int64_t count;
    int64_t below[65]; /* how many values are below each power of two, and how many there are */
} Table;

static inline int64_t num_between(const int64_t *values, int64_t low, int64_t high, int64_t value)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (values[middle] <= value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static inline Table table_of(const void *values, int64_t num_bytes)
{
    Table table = {values, num_bytes / (int64_t)sizeof(int64_t), {0}};
    for (int power = 0; power < 63; power++) {
        table.below[power] = num_between(table.values, 0, table.count, ((int64_t)1 << power) - 1);
    }
    table.below[63] = table.below[64] = table.count;
    return table;
}

/* How many values of the table are at most `value`. */
static inline int64_t num_up_to(const Table *table, int64_t value)
{
    if (value < 1)
        return num_between(table->values, 0, table->below[0], value);
    int power = 63 - __builtin_clzll((uint64_t)value);
    return num_between(table->values, table->below[power], table->below[power + 1], value);
}

#endif
