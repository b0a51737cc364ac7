/* Hooks of calls that start, replace, wait for or end a process. */
#include "clock.h"
#include "environment.h"
#include "events.h"
#include "io_counters.h"
#include "paths.h"
#include "programs.h"
#include "real.h"
#include "waits.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A program that cannot be followed. A child of vfork writes to its parent's file: they share their
 * memory, and the child has no file. */
static void note_program(const char *path, const char *reason)
{
    if (reason == NULL || (ioprof_guard < GUARD_VFORK && !is_recording()))
        return;
    guard_enter();
    set_noted(NOTED_EXEC_WITHOUT_CAPTURE);
    int64_t now = clock_now();
    if (has_begun())
        emit_event(&(struct event){now, now, -1, -1, path_number(AT_FDCWD, path),
                                   text_number(reason, strlen(reason)), KIND_OPEN, SOURCE_NONE});
    guard_leave();
}

/* The environment needs more room than the stack of a thread may have. */
#define MAX_ENVIRONMENT_BYTES 65536

static struct addition before_exec(const char *path, char *const *environment)
{
    struct addition addition = NO_ADDITION;
    int saved_errno = errno;
    if (atomic_load(&recording_mode) == MODE_ON) {
        guard_enter();
        const char *reason = path == NULL ? NULL : why_not_followed(path);
        bool can_open = can_open_library();
        guard_leave();
        bool can_load = can_open && (reason == NULL || strcmp(reason, OTHER_CLASS) != 0);
        addition = can_load ? find_addition(environment) : find_removal(environment, can_open);
        if (addition.bytes > MAX_ENVIRONMENT_BYTES) {
            addition.bytes = 0;
            if (ioprof_guard >= GUARD_VFORK || is_recording())
                set_noted(NOTED_EXEC_WITHOUT_CAPTURE);
        }
        note_program(path, reason);
        if (!can_open && (ioprof_guard >= GUARD_VFORK || is_recording()))
            set_noted(NOTED_EXEC_WITHOUT_CAPTURE);
    }
    errno = saved_errno;
    return addition;
}

/* exec returned, so it failed: the process goes on. */
static void after_failed_exec(void)
{
    if (is_recording_already())
        ring.header->closed = false;
}

/* `same` makes the call with the environment as the job gave it, `other` with the variable
 * `extended`. */
#define EXEC_BODY(path, environment, same, other)                                     \
    struct addition addition = before_exec(path, environment);                        \
    char room[addition.bytes + 1] __attribute__((aligned(8)));                        \
    char *const *extended =                                                           \
        addition.bytes > 0 ? extend_environment(&addition, environment, room) : NULL; \
    compare_at_end(true);                                                             \
    int result = extended == NULL ? same : other;                                     \
    after_failed_exec();                                                              \
    return result;

#define EXEC(name, path, parameters, environment, same, other) \
    int hook_##name parameters                                 \
    {                                                          \
        EXEC_BODY(path, environment, same, other)              \
    }

/* The arguments are listed one by one, up to NULL, which the environment follows, if the call has
 * one. */
#define EXEC_LIST(name, parameter, has_environment, same, other)                                \
    int hook_##name(const char *parameter, const char *first, ...)                              \
    {                                                                                           \
        va_list values;                                                                         \
        size_t count = 0;                                                                       \
        va_start(values, first);                                                                \
        for (const char *next = first; next != NULL; next = va_arg(values, const char *))       \
            count++;                                                                            \
        va_end(values);                                                                         \
        char *arguments[count + 1];                                                             \
        va_start(values, first);                                                                \
        for (size_t place = 0; place <= count; place++)                                         \
            arguments[place] = place == 0 ? (char *)(uintptr_t)first : va_arg(values, char *);  \
        char *const *environment = (has_environment) ? va_arg(values, char *const *) : environ; \
        va_end(values);                                                                         \
        EXEC_BODY(parameter, environment, same, other)                                          \
    }

EXEC_LIST(execl, path, false, REAL(execv)(path, arguments), REAL(execve)(path, arguments, extended))
EXEC_LIST(execlp, file, false, REAL(execvp)(file, arguments),
          REAL(execvpe)(file, arguments, extended))
EXEC_LIST(execle, path, true, REAL(execve)(path, arguments, environment),
          REAL(execve)(path, arguments, extended))
EXEC(execv, path, (const char *path, char *const *arguments), environ, REAL(execv)(path, arguments),
     REAL(execve)(path, arguments, extended))
EXEC(execvp, file, (const char *file, char *const *arguments), environ,
     REAL(execvp)(file, arguments), REAL(execvpe)(file, arguments, extended))
EXEC(execve, path, (const char *path, char *const *arguments, char *const *environment),
     environment, REAL(execve)(path, arguments, environment),
     REAL(execve)(path, arguments, extended))
EXEC(execvpe, file, (const char *file, char *const *arguments, char *const *environment),
     environment, REAL(execvpe)(file, arguments, environment),
     REAL(execvpe)(file, arguments, extended))
EXEC(fexecve, "", (int descriptor, char *const *arguments, char *const *environment), environment,
     REAL(fexecve)(descriptor, arguments, environment),
     REAL(fexecve)(descriptor, arguments, extended))

#define SPAWN(name)                                                                              \
    int hook_##name(pid_t *pid, const char *path, const void *actions, const void *attributes,   \
                    char *const *arguments, char *const *environment)                            \
    {                                                                                            \
        count_fork();                                                                            \
        struct addition addition = before_exec(path, environment);                               \
        char room[addition.bytes + 1] __attribute__((aligned(8)));                               \
        char *const *given =                                                                     \
            addition.bytes > 0 ? extend_environment(&addition, environment, room) : environment; \
        return REAL(name)(pid, path, actions, attributes, arguments, given);                     \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

/* `status` is that of man 2 wait; -1: the caller did not ask for it. */
static void end_child_wait(int64_t start, uint64_t child, int status)
{
    int saved_errno = errno;
    int64_t end = clock_now();
    compare_around_child(true);
    if (child != 0 && status >= 0 && (WIFEXITED(status) || WIFSIGNALED(status)))
        emit_reaped(end, child, status);
    if (end - start >= LEAST_BLOCK_NS && is_recording_already())
        emit_block(start, end, OBJECT_PROCESS, child, END_WOKEN);
    errno = saved_errno;
}

/* What waitpid would say. */
static int wait_status(const siginfo_t *information)
{
    if (information->si_code == CLD_EXITED)
        return W_EXITCODE(information->si_status, 0);
    return information->si_code == CLD_KILLED || information->si_code == CLD_DUMPED
               ? information->si_status
               : -1;
}

#define GIVEN(status) ((status) == NULL ? -1 : *(status))

/* A wait that blocks may take long, so that the counters are compared before it, too. */
#define WAIT(result_type, name, parameters, arguments, blocks, has_reaped, child, child_status) \
    result_type hook_##name parameters                                                          \
    {                                                                                           \
        if (blocks)                                                                             \
            compare_around_child(false);                                                        \
        int64_t start = clock_now();                                                            \
        result_type result = REAL(name) arguments;                                              \
        if (has_reaped)                                                                         \
            end_child_wait(start, (uint64_t)(child), child_status);                             \
        return result;                                                                          \
    }

WAIT(pid_t, wait, (int *status), (status), true, result > 0, result, GIVEN(status))
WAIT(pid_t, waitpid, (pid_t pid, int *status, int options), (pid, status, options),
     !(options & WNOHANG), result > 0, result, GIVEN(status))
WAIT(pid_t, wait3, (int *status, int options, struct rusage *usage), (status, options, usage),
     !(options & WNOHANG), result > 0, result, GIVEN(status))
WAIT(pid_t, wait4, (pid_t pid, int *status, int options, struct rusage *usage),
     (pid, status, options, usage), !(options & WNOHANG), result > 0, result, GIVEN(status))
WAIT(int, waitid, (idtype_t whose, id_t id, siginfo_t *information, int options),
     (whose, id, information, options), !(options & WNOHANG), result == 0 && !(options & WNOWAIT),
     information == NULL ? 0 : information->si_pid,
     information == NULL ? -1 : wait_status(information))

int hook_system(const char *command)
{
    count_fork();
    compare_around_child(false);
    int64_t start = clock_now();
    int result = REAL(system)(command);
    if (result >= 0)
        end_child_wait(start, 0, -1);
    return result;
}

#define EXIT(name)                                         \
    __attribute__((noreturn)) void hook_##name(int status) \
    {                                                      \
        emit_exit();                                       \
        compare_at_end(true);                              \
        REAL(name)(status);                                \
        __builtin_unreachable();                           \
    }

EXIT(_exit)
EXIT(_Exit)
EXIT(quick_exit)
