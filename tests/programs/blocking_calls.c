/* Waits of each kind that the capture library records: `blocking_calls FOLDER` prints a line for
 * each: its name, the object, the waiting thread, and the process and thread that end the wait (0:
 * nobody). Without the library it prints the same names; it checks for itself what calls return. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GLIBC__)
int old_wait(pthread_cond_t *, pthread_mutex_t *);
int old_signal(pthread_cond_t *);
__asm__(".symver old_wait, pthread_cond_wait@GLIBC_2.2.5");
__asm__(".symver old_signal, pthread_cond_signal@GLIBC_2.2.5");
#define HAS_OLD_CONDITIONS 1
#endif

static const char *folder;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t readers = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static int word, ends[2];
static _Atomic int waker;
static int main_pid;

static int tid(void)
{
    return (int)syscall(SYS_gettid);
}

static void pause_ms(int ms)
{
    struct timespec time = {0, ms * 1000000L};
    assert(nanosleep(&time, NULL) == 0);
}

/* Until the thread that began this program is blocked, and 10 ms longer. */
static void pause_while_it_waits(void)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", main_pid);
    for (;;) {
        FILE *file = fopen(path, "re");
        size_t length = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
        assert(length > 0 && fclose(file) == 0);
        text[length] = 0;
        if (strrchr(text, ')')[2] == 'S')
            break;
        pause_ms(1);
    }
    pause_ms(10);
}

static void say(const char *name, const char *object, int by)
{
    printf("%s,%s,%d,%d,%d\n", name, object, tid(), by ? getpid() : 0, by);
}

/* What a helper does once it is waited for; `waker` is its thread. */
static void *help(void *what)
{
    waker = tid();
    pause_while_it_waits();
    ((void (*)(void))what)();
    return NULL;
}

static pthread_t helped_by(void (*what)(void))
{
    pthread_t thread;
    waker = 0;
    assert(pthread_create(&thread, NULL, help, (void *)what) == 0);
    while (waker == 0)
        sched_yield();
    return thread;
}

/* ---------------------------------------------------------------------------------------- threads
 */

static atomic_int has_lock;

static void *hold_mutex(void *unused)
{
    (void)unused;
    assert(pthread_mutex_lock(&mutex) == 0);
    waker = tid();
    pause_while_it_waits();
    assert(pthread_mutex_unlock(&mutex) == 0);
    return NULL;
}

static void *hold_readers(void *unused)
{
    (void)unused;
    assert(pthread_rwlock_wrlock(&readers) == 0);
    waker = tid();
    pause_while_it_waits();
    assert(pthread_rwlock_unlock(&readers) == 0);
    return NULL;
}

static void with_holder(const char *name, void *(*hold)(void *), int (*wait)(void),
                        int (*end)(void))
{
    pthread_t thread;
    waker = 0;
    assert(pthread_create(&thread, NULL, hold, NULL) == 0);
    while (waker == 0)
        sched_yield();
    assert(wait() == 0);
    say(name, "lock", waker);
    assert(end() == 0);
    pthread_join(thread, NULL);
}

static int lock_mutex(void)
{
    return pthread_mutex_lock(&mutex);
}
static int unlock_mutex(void)
{
    return pthread_mutex_unlock(&mutex);
}
static int read_lock(void)
{
    return pthread_rwlock_rdlock(&readers);
}
static int write_lock(void)
{
    return pthread_rwlock_wrlock(&readers);
}
static int unlock_readers(void)
{
    return pthread_rwlock_unlock(&readers);
}

static void signal_condition(void)
{
    pthread_mutex_lock(&mutex);
    word = 1;
    pthread_cond_signal(&condition);
    pthread_mutex_unlock(&mutex);
}

static void wait_condition(void)
{
    word = 0;
    pthread_t thread = helped_by(signal_condition);
    pthread_mutex_lock(&mutex);
    while (word == 0)
        pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    say("condition", "condition", waker);
    pthread_join(thread, NULL);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 3000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&mutex);
    assert(pthread_cond_timedwait(&condition, &mutex, &until) == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);
    say("condition without signal", "condition", 0);
}

#ifdef HAS_OLD_CONDITIONS
/* The layout before glibc 2.3.2 begins with a lock and has no room for the newer one's fields. */
static long old_condition[6];

static void signal_old(void)
{
    pthread_mutex_lock(&mutex);
    word = 1;
    assert(old_signal((pthread_cond_t *)(void *)old_condition) == 0);
    pthread_mutex_unlock(&mutex);
}

static void wait_old(void)
{
    word = 0;
    pthread_t thread = helped_by(signal_old);
    pthread_mutex_lock(&mutex);
    while (word == 0)
        assert(old_wait((pthread_cond_t *)(void *)old_condition, &mutex) == 0);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    assert(old_condition[1] == 0); /* what it points to is elsewhere */
}
#endif

static void post(void)
{
    assert(sem_post(&semaphore) == 0);
}

static void wait_semaphore(void)
{
    sem_init(&semaphore, 0, 1);
    assert(sem_wait(&semaphore) == 0);
    pthread_t thread = helped_by(post);
    assert(sem_wait(&semaphore) == 0);
    say("semaphore", "semaphore", waker);
    pthread_join(thread, NULL);
    struct timespec never = {1, 1000000000}, past = {1, 0};
    errno = 0;
    assert(sem_timedwait(&semaphore, &never) == -1 && errno == EINVAL);
    errno = 0;
    assert(sem_timedwait(&semaphore, &past) == -1 && errno == ETIMEDOUT);
    post();
    errno = 7;
    assert(sem_timedwait(&semaphore, &past) == 0 && errno == 7);
    post();
    errno = 0;
    assert(sem_timedwait(&semaphore, &never) == -1 && errno == EINVAL); /* also where it is free */
}

static void wake_futex(void)
{
    pause_while_it_waits();
    __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
    assert(syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 1);
}

static void wait_futex(void)
{
    word = 0;
    pthread_t thread = helped_by(wake_futex);
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == 0)
        syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    say("futex", "futex", waker);
    pthread_join(thread, NULL);
}

static void do_nothing(void) {}

static void join_thread(void)
{
    pthread_t thread = helped_by(do_nothing);
    int by = waker;
    pthread_join(thread, NULL);
    say("join", "thread", by);
}

static void *wait_for_ever(void *unused)
{
    (void)unused;
    has_lock = 1;
    sem_wait(&semaphore);
    return NULL;
}

/* A thread that waits, and one that need not, end where they are cancelled. */
static void *wait_cancelled(void *unused)
{
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    while (!has_lock)
        sched_yield();
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    sem_wait(&semaphore);
    abort();
}

static void cancel(void)
{
    pthread_t thread;
    void *result;
    sem_init(&semaphore, 0, 0);
    has_lock = 0;
    assert(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
    while (!has_lock)
        sched_yield();
    pause_ms(2);
    pthread_cancel(thread);
    assert(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    sem_init(&semaphore, 0, 1);
    has_lock = 0;
    assert(pthread_create(&thread, NULL, wait_cancelled, NULL) == 0);
    pthread_cancel(thread);
    has_lock = 1;
    assert(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

/* ----------------------------------------------------------------------------------------
 * descriptors */

static void send_byte(void)
{
    assert(write(ends[1], "x", 1) == 1);
}
static void send_message(void)
{
    assert(send(ends[1], "x", 1, 0) == 1);
}
static void send_event(void)
{
    assert(eventfd_write(ends[1], 1) == 0);
}
static void send_end(void)
{
    assert(close(ends[1]) == 0);
}

static int watched;

static int received(void)
{
    char bytes[8];
    return (int)read(ends[0], bytes, sizeof bytes);
}

static void receive(const char *name, void (*what)(void))
{
    pthread_t thread = helped_by(what);
    int got = received();
    say(name, "channel", waker);
    assert(got == (what == send_end ? 0 : what == send_event ? 8 : 1));
    pthread_join(thread, NULL);
}

static void poll_then_receive(const char *name, int way)
{
    pthread_t thread = helped_by(send_byte);
    if (way == 0) {
        struct pollfd polled = {ends[0], POLLIN, 0};
        assert(poll(&polled, 1, -1) == 1);
    } else if (way == 1) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(ends[0], &set);
        assert(select(ends[0] + 1, &set, NULL, NULL, NULL) == 1);
    } else {
        watched = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {EPOLLIN, {.u64 = 77}};
        assert(epoll_ctl(watched, EPOLL_CTL_ADD, ends[0], &event) == 0);
        assert(epoll_wait(watched, &event, 1, -1) == 1);
        close(watched);
    }
    assert(received() == 1);
    say(name, "channel", waker);
    pthread_join(thread, NULL);
}

static void modify(void)
{
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 77}};
    assert(epoll_ctl(watched, EPOLL_CTL_MOD, ends[0], &event) == 0);
}

/* As Boost.Asio wakes who waits: by an eventfd that can always be read, which is modified. */
static void poll_until_modified(const char *name)
{
    ends[0] = eventfd(1, EFD_CLOEXEC);
    watched = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u64 = 77}};
    assert(epoll_ctl(watched, EPOLL_CTL_ADD, ends[0], &event) == 0);
    assert(epoll_wait(watched, &event, 1, -1) == 1); /* it can be read */
    pthread_t thread = helped_by(modify);
    assert(epoll_wait(watched, &event, 1, -1) == 1);
    say(name, "descriptors", waker);
    pthread_join(thread, NULL);
    assert(epoll_wait(watched, &event, 1, 1) == 0);
    close(watched);
    close(ends[0]);
}

static void drain(void)
{
    char room[4096];
    for (int left = 1 << 17; left > 0;) {
        ssize_t got = read(ends[0], room, 4096);
        assert(got > 0);
        left -= (int)got;
    }
}

static void send_much(const char *name)
{
    static char bytes[1 << 17];
    pthread_t thread = helped_by(drain);
    assert(write(ends[1], bytes, sizeof bytes) == sizeof bytes);
    say(name, "room", waker);
    pthread_join(thread, NULL);
}

/* Something is sent before the other end accepts the connection. */
static void connect_both(int family)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    socklen_t length = family == AF_UNIX ? sizeof(sa_family_t) : sizeof(struct sockaddr_in);
    if (family == AF_INET)
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listening = socket(family, SOCK_STREAM, 0);
    assert(bind(listening, (struct sockaddr *)&address, length) == 0);
    assert(listen(listening, 1) == 0);
    length = sizeof address;
    assert(getsockname(listening, (struct sockaddr *)&address, &length) == 0);
    ends[1] = socket(family, SOCK_STREAM, 0);
    assert(connect(ends[1], (struct sockaddr *)&address, length) == 0);
    send_byte();
    ends[0] = accept(listening, NULL, NULL);
    close(listening);
    assert(received() == 1);
}

static void descriptors(void)
{
    assert(pipe(ends) == 0);
    receive("pipe", send_byte);
    poll_then_receive("poll", 0);
    poll_then_receive("select", 1);
    poll_then_receive("epoll", 2);
    send_much("full pipe");
    receive("end of a pipe", send_end);
    close(ends[0]);
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    receive("local socket", send_message);
    receive("local socket by write", send_byte);
    close(ends[0]);
    close(ends[1]);
    connect_both(AF_INET);
    receive("socket", send_message);
    close(ends[0]);
    close(ends[1]);
    connect_both(AF_UNIX);
    receive("accepted local socket", send_message);
    close(ends[0]);
    close(ends[1]);
    ends[0] = ends[1] = eventfd(0, EFD_CLOEXEC);
    receive("eventfd", send_event);
    close(ends[0]);
    poll_until_modified("modified set");
}

/* ----------------------------------------------------------------------------------------
 * processes */

struct shared {
    sem_t ready, semaphore;
    _Atomic int waker;
};

static struct shared *map_shared(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert(file >= 0 && ftruncate(file, 3 * 4096) == 0);
    struct shared *found = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 4096);
    assert(found != MAP_FAILED);
    close(file);
    return found;
}

/* A child that maps the same memory elsewhere. */
static void wait_shared(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/shared", folder);
    struct shared *shared = map_shared(path);
    sem_init(&shared->ready, 1, 0);
    sem_init(&shared->semaphore, 1, 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        void *taken = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert(taken != MAP_FAILED);
        struct shared *own = map_shared(path);
        assert(own != shared);
        fclose(fopen("/proc/self/comm", "r"));
        own->waker = tid();
        sem_post(&own->ready);
        pause_while_it_waits();
        sem_post(&own->semaphore);
        pause_while_it_waits();
        _exit(0);
    }
    sem_wait(&shared->ready);
    sem_wait(&shared->semaphore);
    printf("shared semaphore,semaphore,%d,%d,%d\n", tid(), child, shared->waker);
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
    printf("child,process,%d,%d,%d\n", tid(), child, child);
}

static void lock_file(const char *name, int way)
{
    char path[4096];
    int pipe_ends[2];
    snprintf(path, sizeof path, "%s/lock", folder);
    assert(pipe(pipe_ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        struct flock lock = {.l_type = F_WRLCK};
        assert(way == 2 ? fcntl(file, F_SETLK, &lock) == 0 : flock(file, LOCK_EX) == 0);
        assert(write(pipe_ends[1], "x", 1) == 1);
        pause_while_it_waits();
        lock.l_type = F_UNLCK;
        assert(way == 0   ? flock(file, LOCK_UN) == 0
               : way == 1 ? close(file) == 0
                          : fcntl(file, F_SETLK, &lock) == 0);
        pause_while_it_waits();
        _exit(0);
    }
    char byte;
    assert(read(pipe_ends[0], &byte, 1) == 1);
    int file = open(path, O_RDWR | O_CLOEXEC, 0600);
    struct flock lock = {.l_type = F_WRLCK};
    assert(way == 2 ? fcntl(file, F_SETLKW, &lock) == 0 : flock(file, LOCK_EX) == 0);
    printf("%s,file lock,%d,%d,%d\n", name, tid(), child, child);
    close(file);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    assert(waitpid(child, NULL, 0) == child);
}

int main(int count, char **words)
{
    assert(count == 2);
    folder = words[1];
    main_pid = getpid();
    fclose(fopen("/proc/self/comm", "r")); /* the process is recorded from here on */
    with_holder("lock", hold_mutex, lock_mutex, unlock_mutex);
    with_holder("lock of readers", hold_readers, read_lock, unlock_readers);
    with_holder("lock of a writer", hold_readers, write_lock, unlock_readers);
    wait_condition();
#ifdef HAS_OLD_CONDITIONS
    wait_old();
#endif
    wait_semaphore();
    wait_futex();
    join_thread();
    cancel();
    descriptors();
    wait_shared();
    lock_file("flock", 0);
    lock_file("flock and close", 1);
    lock_file("fcntl", 2);
    pause_ms(3);
    say("sleep", "sleep", 0);
    return 0;
}
