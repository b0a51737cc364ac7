/* Hooks of locks, conditions and semaphores of the C library, of the ends of threads, and of
 * sleeps.
 *
 * An interpreter takes and releases its lock around each system call and each operation of a
 * tensor. So a lock that is free, and one that nobody waits for, cost a look at it and a jump to
 * the C library's function, whether the process is recorded or not; all else is in functions of
 * their own, for which the hook need not save registers. There, what is free is taken by the
 * function that tries, which does the same as the one that waits as long as it need not: then
 * nothing is timed. */
#include "real.h"
#include "waits.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>

/* The call, timed; recorded where it took long. `was_over`: whether its result says so. */
#define BLOCKING(type, call, kind, object, was_over)                                      \
    int64_t start = clock_now();                                                          \
    type result = call;                                                                   \
    int64_t end = clock_now();                                                            \
    if (__builtin_expect(end - start >= LEAST_BLOCK_NS, 1) && is_recording_already()) {   \
        int saved_errno = errno;                                                          \
        emit_block(start, end, kind, object, (was_over) ? END_TIME_WAS_OVER : END_WOKEN); \
        errno = saved_errno;                                                              \
    }                                                                                     \
    return result

/* A function of one object that may end the wait of another thread; recorded where one waits. */
#define WAKE(name, is_waited_for, kind, number_of)                                                 \
    OUT_OF_LINE static int wake_by_##name(void *object)                                            \
    {                                                                                              \
        if (!is_recording_already() || !is_waited_for(object))                                     \
            return REAL(name)(object);                                                             \
        int64_t now = clock_now();                                                                 \
        uint64_t number = number_of(object); /* afterwards it may be gone */                       \
        int result = REAL(name)(object);                                                           \
        int saved_errno = errno;                                                                   \
        emit_wake(now, now, kind, number);                                                         \
        errno = saved_errno;                                                                       \
        return result;                                                                             \
    }                                                                                              \
    HOT int hook_##name(void *object)                                                              \
    {                                                                                              \
        real_##name##_type *real = KNOWN_REAL(name);                                               \
        return __builtin_expect(real == NULL || is_waited_for(object), 0) ? wake_by_##name(object) \
                                                                          : real(object);          \
    }

static inline int word_of(const void *object, int place)
{
    return __atomic_load_n((const int *)object + place, __ATOMIC_RELAXED);
}

/* --------------------------------------------------------------------------------------- locks */

enum { LOCK_WORD = 0, LOCK_KIND = 4, LOCK_SHARED = 128, LOCK_HAS_OWNER = 16 | 32 | 64 };

static uint64_t lock_object(const void *lock)
{
    return object_at(lock, waiters_known.waited_lock && (word_of(lock, LOCK_KIND) & LOCK_SHARED));
}

/* A lock's word is 2 where somebody may wait; of one that is robust or inherits priority it is the
 * owner, with the highest bit. */
static inline bool is_contended(const void *lock)
{
    int word = word_of(lock, LOCK_WORD);
    return (unsigned)word >= waiters_known.waited_lock &&
           (word < 0 || waiters_known.waited_lock == 0 ||
            !(word_of(lock, LOCK_KIND) & LOCK_HAS_OWNER));
}

/* A clock that a function refuses is refused also where the lock is free. */
static inline bool is_usual_clock(int clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC;
}

/* What is free is left to the C library, untimed: if another thread takes it in the nanosecond
 * until then, the wait is not recorded. A word that is not 0 may still be that of a lock that can
 * be taken: the own one, which is recursive. */
#define LOCK(name, parameters, arguments, may_try)                                                \
    OUT_OF_LINE static int wait_by_##name parameters                                              \
    {                                                                                             \
        if (!is_recording_already() || !(may_try))                                                \
            return REAL(name) arguments;                                                          \
        int tried = pthread_mutex_trylock(lock);                                                  \
        if (tried != EBUSY)                                                                       \
            return tried;                                                                         \
        BLOCKING(int, REAL(name) arguments, OBJECT_LOCK, lock_object(lock), result == ETIMEDOUT); \
    }                                                                                             \
    HOT int hook_##name parameters                                                                \
    {                                                                                             \
        real_##name##_type *real = KNOWN_REAL(name);                                              \
        return __builtin_expect(real == NULL || word_of(lock, LOCK_WORD) != 0, 0)                 \
                   ? wait_by_##name arguments                                                     \
                   : real arguments;                                                              \
    }

LOCK(pthread_mutex_lock, (void *lock), (lock), true)
LOCK(pthread_mutex_timedlock, (void *lock, const void *until), (lock, until), true)
LOCK(pthread_mutex_clocklock, (void *lock, int clock, const void *until), (lock, clock, until),
     is_usual_clock(clock))

WAKE(pthread_mutex_unlock, is_contended, OBJECT_LOCK, lock_object)

/* Locks of readers and writers: two words of them have a bit that says that somebody waits. */
#define SHARED_LOCK(name, try)                                                       \
    OUT_OF_LINE static int wait_by_##name(void *lock)                                \
    {                                                                                \
        BLOCKING(int, REAL(name)(lock), OBJECT_LOCK, object_at(lock, false), false); \
    }                                                                                \
    int hook_##name(void *lock)                                                      \
    {                                                                                \
        if (!is_recording_already())                                                 \
            return REAL(name)(lock);                                                 \
        int tried = try(lock);                                                       \
        return __builtin_expect(tried != EBUSY, 1) ? tried : wait_by_##name(lock);   \
    }

SHARED_LOCK(pthread_rwlock_rdlock, pthread_rwlock_tryrdlock)
SHARED_LOCK(pthread_rwlock_wrlock, pthread_rwlock_trywrlock)

enum { WRITE_PHASE_WORD = 2, WRITERS_WORD = 3, WORD_IS_WAITED_FOR = 2 };

static inline bool is_shared_lock_contended(const void *lock)
{
    return waiters_known.waited_lock == 0 ||
           ((word_of(lock, WRITE_PHASE_WORD) | word_of(lock, WRITERS_WORD)) & WORD_IS_WAITED_FOR);
}

static uint64_t shared_lock_object(const void *lock)
{
    return object_at(lock, false);
}

WAKE(pthread_rwlock_unlock, is_shared_lock_contended, OBJECT_LOCK, shared_lock_object)

/* ---------------------------------------------------------------------------------- conditions */

/* The number of waiters is above three bits, of which the lowest says that processes share it. */
static inline unsigned condition_word(const void *condition)
{
    int place = waiters_known.place_in_condition;
    return place < 0 ? 8 : (unsigned)word_of(condition, place);
}

static inline bool is_condition_waited_for(const void *condition)
{
    return condition_word(condition) >= 8;
}

static uint64_t condition_object(const void *condition)
{
    return object_at(condition, condition_word(condition) & 1);
}

/* The wait gives the lock away, past the hook of that. */
static void end_lock_before_wait(const void *lock)
{
    if (is_contended(lock)) {
        int64_t now = clock_now();
        emit_wake(now, now, OBJECT_LOCK, lock_object(lock));
    }
}

#define CONDITION_WAIT(name, parameters, arguments)                                        \
    int hook_##name parameters                                                             \
    {                                                                                      \
        if (!is_recording_already())                                                       \
            return REAL(name) arguments;                                                   \
        end_lock_before_wait(lock);                                                        \
        BLOCKING(int, REAL(name) arguments, OBJECT_CONDITION, condition_object(condition), \
                 result == ETIMEDOUT);                                                     \
    }

CONDITION_WAIT(pthread_cond_wait, (void *condition, void *lock), (condition, lock))
CONDITION_WAIT(pthread_cond_timedwait, (void *condition, void *lock, const void *until),
               (condition, lock, until))
CONDITION_WAIT(pthread_cond_clockwait, (void *condition, void *lock, int clock, const void *until),
               (condition, lock, clock, until))

WAKE(pthread_cond_signal, is_condition_waited_for, OBJECT_CONDITION, condition_object)
WAKE(pthread_cond_broadcast, is_condition_waited_for, OBJECT_CONDITION, condition_object)

#ifdef IOPROF_SYMBOL_VERSIONS
/* Programs that were linked before glibc 2.3.2 have conditions of another layout, and name their
 * functions by another version. */
#define OLD_CONDITION(name, parameters, arguments)                    \
    __attribute__((visibility("default"))) int old_##name parameters; \
    int old_##name parameters                                         \
    {                                                                 \
        static _Atomic(void *) address;                               \
        if (address == NULL)                                          \
            address = dlvsym(RTLD_NEXT, #name, "GLIBC_2.2.5");        \
        return ((real_##name##_type *)(void *)address)arguments;      \
    }                                                                 \
    __asm__(".symver old_" #name ", " #name "@GLIBC_2.2.5");

OLD_CONDITION(pthread_cond_wait, (void *condition, void *lock), (condition, lock))
OLD_CONDITION(pthread_cond_timedwait, (void *condition, void *lock, const void *until),
              (condition, lock, until))
OLD_CONDITION(pthread_cond_signal, (void *condition), (condition))
OLD_CONDITION(pthread_cond_broadcast, (void *condition), (condition))
#endif

/* ---------------------------------------------------------------------------------- semaphores */

enum { SEMAPHORE_WAITERS = 1, SEMAPHORE_SHARED = 2 };

static uint64_t semaphore_object(const void *semaphore)
{
    return object_at(semaphore,
                     waiters_known.of_semaphores && word_of(semaphore, SEMAPHORE_SHARED) != 0);
}

static inline bool is_valid_time(const struct timespec *time)
{
    return time->tv_nsec >= 0 && time->tv_nsec < 1000000000;
}

/* A wait is where a thread may be cancelled, also one for a semaphore that is free. */
static bool try_semaphore(void *semaphore)
{
    int saved_errno = errno;
    pthread_testcancel();
    bool has_it = sem_trywait(semaphore) == 0;
    errno = saved_errno;
    return has_it;
}

#define SEMAPHORE_WAIT(name, parameters, arguments, may_try)                               \
    int hook_##name parameters                                                             \
    {                                                                                      \
        if (!is_recording_already())                                                       \
            return REAL(name) arguments;                                                   \
        if ((may_try) && try_semaphore(semaphore))                                         \
            return 0;                                                                      \
        BLOCKING(int, REAL(name) arguments, OBJECT_SEMAPHORE, semaphore_object(semaphore), \
                 result != 0 && errno == ETIMEDOUT);                                       \
    }

SEMAPHORE_WAIT(sem_wait, (void *semaphore), (semaphore), true)
SEMAPHORE_WAIT(sem_timedwait, (void *semaphore, const void *until), (semaphore, until),
               is_valid_time(until))
SEMAPHORE_WAIT(sem_clockwait, (void *semaphore, int clock, const void *until),
               (semaphore, clock, until), is_usual_clock(clock) && is_valid_time(until))

static inline bool is_semaphore_waited_for(const void *semaphore)
{
    return !waiters_known.of_semaphores || word_of(semaphore, SEMAPHORE_WAITERS) != 0;
}

WAKE(sem_post, is_semaphore_waited_for, OBJECT_SEMAPHORE, semaphore_object)

/* Another one may be mapped there later. */
int hook_sem_close(void *semaphore)
{
    forget_shared_object(semaphore);
    return REAL(sem_close)(semaphore);
}

/* ----------------------------------------------------------------------------- ends of threads */

/* The id of a thread is in the number of its clock (clock_getcpuclockid(3)); 0: it has ended. */
static uint64_t thread_object(unsigned long thread)
{
    clockid_t clock;
    return pthread_getcpuclockid((pthread_t)thread, &clock) == 0 ? (uint64_t)~(clock >> 3) : 0;
}

#define JOIN(name, parameters, arguments)                                                \
    int hook_##name parameters                                                           \
    {                                                                                    \
        if (!is_recording_already())                                                     \
            return REAL(name) arguments;                                                 \
        uint64_t object = thread_object(thread);                                         \
        BLOCKING(int, REAL(name) arguments, OBJECT_THREAD, object, result == ETIMEDOUT); \
    }

JOIN(pthread_join, (unsigned long thread, void **result_), (thread, result_))
JOIN(pthread_timedjoin_np, (unsigned long thread, void **result_, const void *until),
     (thread, result_, until))
JOIN(pthread_clockjoin_np, (unsigned long thread, void **result_, int clock, const void *until),
     (thread, result_, clock, until))

/* -------------------------------------------------------------------------------------- sleeps */

#define SLEEP(type, name, parameters, arguments)                     \
    type hook_##name parameters                                      \
    {                                                                \
        if (!is_recording_already())                                 \
            return REAL(name) arguments;                             \
        BLOCKING(type, REAL(name) arguments, OBJECT_SLEEP, 0, true); \
    }

SLEEP(int, nanosleep, (const void *time, void *rest), (time, rest))
SLEEP(int, clock_nanosleep, (int clock, int flags, const void *time, void *rest),
      (clock, flags, time, rest))
SLEEP(int, usleep, (unsigned microseconds), (microseconds))
SLEEP(unsigned, sleep, (unsigned seconds), (seconds))
