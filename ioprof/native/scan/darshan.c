#include "darshan.h"

#include <math.h>

#include "text.h"

static inline uint64_t word_at(const unsigned char *at, bool is_swapped)
{
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return is_swapped ? __builtin_bswap64(word) : word;
}

static inline double number_at(const unsigned char *at, bool is_swapped)
{
    uint64_t word = word_at(at, is_swapped);
    double number;
    memcpy(&number, &word, sizeof(number));
    return number;
}

/* Adds the reads that have possible times and sizes; there is space for all. */
static inline void add_reads(DarshanScan *scan, const unsigned char *at, size_t count,
                             size_t item_bytes, bool is_swapped)
{
    Columns *reads = &scan->reads;
    int64_t *starts = column_of(reads, READ_START_NS), *ends = column_of(reads, READ_END_NS);
    int64_t *bytes = column_of(reads, READ_BYTES), *offsets = column_of(reads, READ_OFFSET);
    const int64_t start_ns = scan->start_ns;
    size_t row = reads->rows;
    for (const unsigned char *limit = at + count * item_bytes; at < limit; at += item_bytes) {
        int64_t offset = (int64_t)word_at(at, is_swapped),
                length = (int64_t)word_at(at + 8, is_swapped);
        double start = number_at(at + 16, is_swapped), end = number_at(at + 24, is_swapped);
        /* A comparison with NaN is false. */
        if (start >= 0 && end >= start && end < 1e9 && length >= 0 && offset >= -1) {
            starts[row] = start_ns + llrint(start * 1e9);
            ends[row] = start_ns + llrint(end * 1e9);
            bytes[row] = length;
            offsets[row] = offset;
            row++;
        }
    }
    scan->num_impossible_in_record += (int64_t)(count - (row - reads->rows));
    reads->rows = row;
}

/* `at` is a whole record; false: no memory. */
static bool begin_record(DarshanScan *scan, const unsigned char *at)
{
    int64_t rank = (int64_t)word_at(at + 8, scan->is_swapped);
    int64_t writes = (int64_t)word_at(at + 88, scan->is_swapped),
            reads = (int64_t)word_at(at + 96, scan->is_swapped);
    const char *host = (const char *)at + 24;
    int64_t number = number_of(&scan->hosts, host, strnlen(host, 64));
    if (number < 0)
        return false;
    scan->is_damaged = writes < 0 || reads < 0;
    if (scan->is_damaged)
        return true;
    scan->file[FILE_ID] = (int64_t)word_at(at, scan->is_swapped);
    scan->file[FILE_RANK] = rank >= 0 && rank <= INT32_MAX ? rank : NONE;
    scan->file[FILE_HOST] = number;
    scan->file[FILE_READS] = reads;
    scan->writes_left = (uint64_t)writes;
    scan->reads_left = (uint64_t)reads;
    scan->num_writes_in_record = writes;
    scan->num_impossible_in_record = 0;
    scan->complete_rows = scan->reads.rows;
    scan->is_open = true;
    return true;
}

static bool end_record(DarshanScan *scan)
{
    if (scan->file[FILE_READS]) {
        int64_t *cells = next_row(&scan->files);
        if (!cells)
            return false;
        memcpy(cells, scan->file, sizeof(scan->file));
        cells[FILE_READS] = (int64_t)(scan->reads.rows - scan->complete_rows);
        scan->files.rows++;
    }
    scan->num_writes += scan->num_writes_in_record;
    scan->num_impossible += scan->num_impossible_in_record;
    scan->is_open = false;
    return true;
}

static size_t item_bytes(const DarshanScan *scan)
{
    return !scan->is_open ? RECORD_BYTES : scan->has_threads ? SEGMENT_BYTES + 8 : SEGMENT_BYTES;
}

/* Takes up to `available` items, which are all records or all segments: how many; 0: no memory. */
static size_t take(DarshanScan *scan, const unsigned char *at, size_t available)
{
    size_t taken = 1;
    if (!scan->is_open) {
        if (!begin_record(scan, at))
            return 0;
    } else if (scan->writes_left) {
        taken = available < scan->writes_left ? available : (size_t)scan->writes_left;
        scan->writes_left -= taken;
    } else {
        taken = available < scan->reads_left ? available : (size_t)scan->reads_left;
        if (!reserve_rows(&scan->reads, taken))
            return 0;
        if (scan->is_swapped)
            add_reads(scan, at, taken, item_bytes(scan), true);
        else
            add_reads(scan, at, taken, item_bytes(scan), false);
        scan->reads_left -= taken;
    }
    return scan->is_open && !scan->writes_left && !scan->reads_left && !end_record(scan) ? 0
                                                                                         : taken;
}

bool scan_darshan(DarshanScan *scan, const unsigned char *data, size_t size)
{
    const unsigned char *end = data + size;
    while (data < end && !scan->is_damaged) {
        size_t bytes = item_bytes(scan), available = (size_t)(end - data);
        if (scan->rest_size || available < bytes) {
            size_t missing = bytes - scan->rest_size,
                   added = available < missing ? available : missing;
            memcpy(scan->rest + scan->rest_size, data, added);
            scan->rest_size += added;
            data += added;
            if (scan->rest_size < bytes)
                break;
            scan->rest_size = 0;
            if (!take(scan, scan->rest, 1))
                return false;
        } else {
            size_t taken = take(scan, data, available / bytes);
            if (!taken)
                return false;
            data += taken * bytes;
        }
    }
    return true;
}

void end_darshan(DarshanScan *scan)
{
    if (!scan->is_open)
        return;
    scan->reads.rows = scan->complete_rows;
    scan->is_damaged = true;
    scan->is_open = false;
}
