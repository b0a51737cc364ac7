/* Python calls audit hooks with `cpython.run_*` when it is initialised and about to run a script, a
 * module or a command. A hook may be added before Python is initialised (PySys_AddAuditHook in
 * Python's C API), and the interpreter's functions are found in a program with a static
 * interpreter, too, since it exports them for its extensions. An audit hook cannot be removed, and
 * costs every audited event, so that there is none where PYTHONPATH serves. */
#include "python_start.h"

#include "gnu_source.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COMMAND_BYTES 4096
#define PY_FILE_INPUT 257 /* Py_file_input */

typedef int audit_hook(const char *event, void *arguments, void *data);

static struct {
    bool is_started;
    char code[2 * PATH_MAX + 256];
} start;

bool is_python(void)
{
    return dlsym(RTLD_DEFAULT, "Py_BytesMain") != NULL ||
           dlsym(RTLD_DEFAULT, "Py_InitializeFromConfig") != NULL;
}

static int is_python_library(struct dl_phdr_info *library, size_t size, void *data)
{
    static const char prefix[] = "libpython";
    (void)size;
    (void)data;
    const char *slash = strrchr(library->dlpi_name, '/');
    return strncmp(slash == NULL ? library->dlpi_name : slash + 1, prefix, sizeof prefix - 1) == 0;
}

bool has_python_library(void)
{
    return dl_iterate_phdr(is_python_library, NULL) != 0;
}

/* -------------------------------------------------------------------------- in the interpreter */

/* An exception of ours is dropped: the job goes on without hooks, and the report says so. */
static void run_code(void)
{
    void *(*make_dict)(void) = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyDict_New");
    void *(*run)(const char *, int, void *, void *, void *) =
        (void *(*)(const char *, int, void *, void *, void *))dlsym(RTLD_DEFAULT,
                                                                    "PyRun_StringFlags");
    void (*drop)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "Py_DecRef");
    void (*clear)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "PyErr_Clear");
    if (make_dict == NULL || run == NULL || drop == NULL || clear == NULL)
        return;
    void *names = make_dict();
    void *result = names == NULL ? NULL : run(start.code, PY_FILE_INPUT, names, names, NULL);
    if (result == NULL)
        clear();
    drop(result); /* Py_DecRef accepts NULL */
    drop(names);
}

static int on_event(const char *event, void *arguments, void *data)
{
    (void)arguments;
    (void)data;
    if (start.is_started || strncmp(event, "cpython.run_", 12) != 0)
        return 0;
    start.is_started = true;
    run_code();
    return 0;
}

/* -------------------------------------------------------------------------- by the constructor */

/* Whether Python's options, those before the script, contain -I, -E or -S, which may stand together
 * with others. */
static bool has_isolating_option(const char *command, size_t length)
{
    for (const char *word = command + strnlen(command, length) + 1; word < command + length;
         word += strlen(word) + 1) {
        if (word[0] != '-' || word[1] == '\0')
            return false;
        if (word[1] ==
            '-') { /* --check-hash-based-pycs VALUE is the only long option before a script */
            word += strlen(word) + 1;
            continue;
        }
        for (const char *letter = word + 1; *letter != '\0'; letter++) {
            if (*letter == 'I' || *letter == 'E' || *letter == 'S')
                return true;
            if (*letter == 'c' || *letter == 'm')
                return false;
            if (*letter == 'W' || *letter == 'X') { /* with a value, in the same word or the next */
                if (letter[1] == '\0')
                    word += strlen(word) + 1;
                break;
            }
        }
    }
    return false;
}

static void write_code(const char *site)
{
    static const char path[] = "/sitecustomize.py", digits[] = "0123456789abcdef";
    char *place = stpcpy(start.code, "path = __import__('os').fsdecode(bytes.fromhex('");
    for (const char *part = site; part != NULL; part = part == site ? path : NULL)
        for (const char *letter = part; *letter != '\0'; letter++) {
            *place++ = digits[(unsigned char)*letter >> 4];
            *place++ = digits[(unsigned char)*letter & 15];
        }
    stpcpy(place,
           "'))\nwith open(path, 'rb') as file:\n    source = file.read()\n"
           "exec(compile(source, path, 'exec'), {'__name__': 'ioprof_start', '__file__': path})\n");
}

void start_isolated_python(const char *site)
{
    char command[COMMAND_BYTES + 1];
    int (*add)(audit_hook *, void *) =
        (int (*)(audit_hook *, void *))dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
    if (add == NULL || strlen(site) >= PATH_MAX - 32)
        return;
    int descriptor = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return;
    ssize_t length = read(descriptor, command, COMMAND_BYTES);
    close(descriptor);
    if (length <= 0)
        return;
    command[length] = '\0';
    if (!has_isolating_option(command, (size_t)length))
        return;
    write_code(site);
    add(on_event, NULL);
}
