/* The records of Darshan's module DXT_POSIX: of each file and rank the calls of write, then those
 * of read (darshan-dxt-log-format.h). */

#ifndef IOPROF_SCAN_DARSHAN_H
#define IOPROF_SCAN_DARSHAN_H

#include "tables.h"

/* Columns of the tables; the order of ioprof/interchange/darshan_reads.py. */
enum { READ_START_NS, READ_END_NS, READ_BYTES, READ_OFFSET, READ_COLUMNS };
enum { FILE_ID, FILE_RANK, FILE_HOST, FILE_READS, FILE_COLUMNS };

enum {
    RECORD_BYTES = 104, /* id, rank, whether it is shared, host name, numbers of writes and reads */
    SEGMENT_BYTES =
        32, /* a call: offset, length, start and end in seconds; in version 2 a thread too */
};

typedef struct {
    Columns reads; /* those that are possible, in the order of the records; an offset of -1: not
                      known */
    Table files;   /* of each record with reads; the rank may be NONE */
    Strings hosts;
    int64_t start_ns; /* what is added to times */
    bool has_threads;
    bool is_swapped; /* the log has the other byte order */
    bool is_damaged; /* a record has impossible numbers: nothing more is read */
    int64_t num_writes, num_impossible;
    /* The record that has begun. Its reads count when all of it was there. */
    bool is_open;
    int64_t file[FILE_COLUMNS];
    int64_t num_writes_in_record, num_impossible_in_record;
    uint64_t writes_left, reads_left;
    size_t complete_rows; /* of reads, when the record began */
    unsigned char
        rest[RECORD_BYTES]; /* a part of a record or segment, which goes on in the next block */
    size_t rest_size;
} DarshanScan;

/* Scans the next bytes of the module's data, which may end anywhere; false: no memory. */
bool scan_darshan(DarshanScan *scan, const unsigned char *data, size_t size);

/* After the last bytes: leaves out a record that is not complete. */
void end_darshan(DarshanScan *scan);

#endif
