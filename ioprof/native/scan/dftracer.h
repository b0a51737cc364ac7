/* Events of a DFTracer file, one per line. What is not in the usual form is left to the decoder in
 * Python, which says what it is. */

#ifndef IOPROF_SCAN_DFTRACER_H
#define IOPROF_SCAN_DFTRACER_H

#include "tables.h"
#include "words.h"

/* Columns of the tables; the order of ioprof/interchange/dftracer_events.py. */
enum { EVENT_AT, START_NS, LENGTH_NS, CALL, PID, TID, RET, OFFSET, HOST, PATH, EVENT_COLUMNS };
enum { USE_COUNT, USE_IS_KEPT, USE_COLUMNS };
enum { EXPLAINED_AT, EXPLAINED_IS_PATH, EXPLAINED_HASH, EXPLAINED_NAME, EXPLAINED_COLUMNS };
enum { LINE_AT, LINE_START, LINE_END, LINE_COLUMNS };

enum { MOST_FIELDS = 16, NUM_LIKELY = 64 };

/* Which field came at which place of the last object: the next one is likely to have the same
 * order. */
typedef struct {
    unsigned char fields[MOST_FIELDS];
    unsigned char
        sizes[MOST_FIELDS]; /* of a whole number or short text at that place; 0: another value */
} Order;

typedef struct {
    Columns events;  /* HOST and PATH: twice the number of a name, or of a hash plus 1 */
    Table uses;      /* by call: its events, and whether they are in the table of events */
    Table explained; /* what hashes stand for */
    Table left;      /* lines for the decoder in Python */
    Strings calls;   /* category, a zero byte, name */
    Strings names, hashes;
    Order order, order_of_arguments;
    int64_t likely_calls[NUM_LIKELY]; /* by size and end of the name, which is faster than a hash of
                                         category and name */
    int64_t num_lines, num_events;
    const Word *system_calls, *kept; /* categories of which only some names are kept; each list ends
                                        with a word without text */
} DFTracerScan;

/* Scans the whole lines in [text, text + size); false: no memory. */
bool scan_dftracer(DFTracerScan *scan, const char *text, size_t size);

#endif
