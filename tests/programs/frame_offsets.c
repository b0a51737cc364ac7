/* Prints the offsets of ioprof/stacks/layouts.py, as the headers of Python 3.11 or 3.12 have them.
 */

#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>

#include "pycore_code.h"
#include "pycore_frame.h"
#include "pycore_interp.h"
#include "pycore_runtime.h"

#define PRINT(type, member) printf("%zu ", offsetof(type, member))

int main(void)
{
    PRINT(_PyRuntimeState, interpreters.head);
    PRINT(PyInterpreterState, threads.head);
    PRINT(PyThreadState, next);
    PRINT(PyThreadState, interp);
    PRINT(PyThreadState, native_thread_id);
#if PY_VERSION_HEX < 0x030C0000
    PRINT(_PyRuntimeState, ceval.gil);
#else
    PRINT(PyInterpreterState, ceval.gil);
#endif
    PRINT(PyThreadState, cframe);
    PRINT(_PyCFrame, current_frame);
    PRINT(struct _PyInterpreterFrame, previous);
    PRINT(struct _PyInterpreterFrame, f_code);
    PRINT(struct _PyInterpreterFrame, prev_instr);
    PRINT(struct _PyInterpreterFrame, owner);
    PRINT(PyCodeObject, co_filename);
    PRINT(PyCodeObject, co_qualname);
    PRINT(PyCodeObject, co_linetable);
    PRINT(PyCodeObject, co_firstlineno);
    PRINT(PyCodeObject, co_code_adaptive);
    printf("%zu %zu\n", sizeof(PyASCIIObject), sizeof(PyCompactUnicodeObject));
    return 0;
}
