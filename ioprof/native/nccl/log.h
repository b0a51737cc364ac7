/* The collective file of this process, to which any number of threads write without a lock or an
 * allocation. COLLECTIVES.md explains every byte. Before log_open, after a failed one, and in a
 * forked child nothing is written. */
#ifndef IOPROF_NCCL_LOG_H
#define IOPROF_NCCL_LOG_H

#include "collective_format.h"

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* Begins a file in the folder that IOPROF_SPOOL names, unless this process has one; false: nothing
 * is to be recorded. */
bool log_open(uint32_t api);

bool log_is_open(void);

/* Process id for which the file was begun. */
uint32_t log_pid(void);

/* Index of a new communicator, which may be beyond the table. */
uint64_t log_add_communicator(void);

/* Entry of the table; NULL: the index is beyond it, or no file is open. */
struct ioprof_communicator *log_communicator(uint64_t index);

void log_count_untracked(void);

/* A time of a GPU relative to the first that was ever reported. */
int64_t log_gpu_time(uint64_t timer);

void log_write(uint32_t operation, enum ioprof_collective_record_kind kind, uint8_t detail,
               int64_t time, int64_t value);

/* CLOCK_MONOTONIC, relative to the header's `base_ns`. */
int64_t log_now(void);

/* The same relative to the epoch of CLOCK_MONOTONIC. */
int64_t log_absolute(int64_t time_ns);

#pragma GCC visibility pop

#endif
