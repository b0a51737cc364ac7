#include "arguments.h"

#include "fields.h"

#include <stdbool.h>

/* Interned, and in an array of their own, which a call that comes back to cold caches reads with
 * one access to memory. */
static PyObject *field_keywords[NUM_FIELDS];
static const char *const words[NUM_WORDS] = {"kind", "name", "start_ns", "end_ns"};
static PyObject *word_keywords[NUM_WORDS];

int intern_keywords(void)
{
    for (int place = 0; place < NUM_FIELDS; place++)
        if ((field_keywords[place] = PyUnicode_InternFromString(fields[place].name)) == NULL)
            return -1;
    for (int place = 0; place < NUM_WORDS; place++)
        if ((word_keywords[place] = PyUnicode_InternFromString(words[place])) == NULL)
            return -1;
    return 0;
}

static inline bool same(PyObject *left, PyObject *right, bool by_value)
{
    return left == right || (by_value && PyUnicode_Compare(left, right) == 0);
}

/* Keywords in calls are interned by the compiler, so that comparing pointers finds them; text is
 * compared only if that fails. */
static int take_keyword(const char *function, PyObject *keyword, PyObject *value,
                        PyObject **arguments, int num_words, const int *order,
                        struct ioprof_record *record)
{
    for (int by_value = 0; by_value < 2; by_value++) {
        for (int place = 0; place < NUM_FIELDS; place++)
            if (same(keyword, field_keywords[place], by_value))
                return store_field(record, &fields[place], value);
        for (int place = 0; place < num_words; place++) {
            if (!same(keyword, word_keywords[order[place]], by_value))
                continue;
            if (arguments[order[place]] != NULL) {
                PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'",
                             function, keyword);
                return -1;
            }
            arguments[order[place]] = value;
            return 0;
        }
    }
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function,
                 keyword);
    return -1;
}

int take_arguments(const char *function, PyObject *const *args, Py_ssize_t num_args,
                   PyObject *names, int num_words, const int *order, PyObject **arguments,
                   struct ioprof_record *record)
{
    if (num_args > num_words) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     function, num_words, num_args);
        return -1;
    }
    for (Py_ssize_t place = 0; place < num_args; place++)
        arguments[order[place]] = args[place];
    Py_ssize_t num_keywords = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t place = 0; place < num_keywords; place++)
        if (take_keyword(function, PyTuple_GetItem(names, place), args[num_args + place], arguments,
                         num_words, order, record) < 0)
            return -1;
    for (int place = 0; place < num_words; place++)
        if (arguments[order[place]] == NULL && order[place] != NAME) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", function,
                         words[order[place]]);
            return -1;
        }
    return 0;
}
