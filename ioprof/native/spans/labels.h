/* Kinds and strings of spans, as numbers of the capture file. */
#ifndef IOPROF_SPANS_LABELS_H
#define IOPROF_SPANS_LABELS_H

#include "python_api.h"

#include "wire_format.h"

/* A kind that the observers record. */
struct kind {
    const char *text;
    int number; /* 0: the recording has no such kind */
};

/* A name that is written in each step, and its number in a recording. */
struct label {
    PyObject *text;
    uint32_t generation; /* of that recording */
    int32_t id;
};

#pragma GCC visibility push(hidden)

extern struct kind user_kind, transform_kind, decode_kind, compute_kind, step_kind, comm_kind;

/* Once per process. */
int prepare_strings(void);

/* When a recording begins or ends: the strings of another file have other numbers. */
void forget_strings(void);

/* The kinds of a recording, of which the last one is that of users' own spans. -1 and an exception
 * where they are not valid. */
int take_kinds(PyObject *names);

/* The number of a str in the current recording; -1 in `id` where there is none. -1 and an exception
 * where `name` is no str. */
int name_id(PyObject *name, int32_t *id);

/* The same of such a name; -1 where there is none. */
int32_t label_id(struct label *label);

/* Kind and name of a record. A string that is no kind is the name of a user's own span, before the
 * name given, if any.
 * `*shown` becomes a new reference to the name, or NULL. */
int set_label(struct ioprof_record *record, PyObject *kind, PyObject *name, PyObject **shown);

#pragma GCC visibility pop

#endif
