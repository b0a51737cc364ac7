/* The fields of a record that Python sets and reads by name. */
#ifndef IOPROF_SPANS_FIELDS_H
#define IOPROF_SPANS_FIELDS_H

#include "python_api.h"

#include "wire_format.h"

#define NUM_FIELDS 7

struct field {
    const char *name;
    size_t offset;
    size_t bytes;
    long long low;
    long long high;
};

#pragma GCC visibility push(hidden)

extern struct field fields[NUM_FIELDS];

long long load_field(const struct ioprof_record *record, const struct field *field);

/* -1 and an exception where the value is no number, or does not fit. */
int store_field(struct ioprof_record *record, const struct field *field, PyObject *value);

#pragma GCC visibility pop

#endif
