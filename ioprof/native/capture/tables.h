/* Tables of the library, mapped when something is first entered and never freed.
 *
 * As static variables they would be mapped with the library: where the job's limits (RLIMIT_AS,
 * RLIMIT_DATA) leave no room for them, the dynamic linker ends the program before it begins. Here
 * the library only knows less. */
#ifndef IOPROF_TABLES_H
#define IOPROF_TABLES_H

#include "gnu_source.h"

#include <stdatomic.h>
#include <stddef.h>

/* Its pages; NULL: not mapped yet. */
typedef _Atomic(void *) table_pages;

#pragma GCC visibility push(hidden)

/* The pages of a table, which are zeroed where no thread has mapped them before; NULL: there is no
 * room. errno is kept. */
void *map_table(table_pages *table, size_t bytes);

#pragma GCC visibility pop

static inline void *mapped_table(table_pages *table)
{
    return atomic_load_explicit(table, memory_order_acquire);
}

#endif
