/* native/model/wait.pml: sleeping and waking on one WaitWord.
 *
 * Models (native/wait.hpp, wait.cpp): WaitWord, post(), ring(), Sleeper, wait_until(), sleep_on(),
 * wake_all(); Group::give_up() and the part of Group::check_peers() that wait_until() calls; and
 * Completion::finish() and Completion::wait(), which are post() and the same loop.
 *
 * Each access to a shared word is a step of its own. FUTEX_WAIT compares and queues in one step,
 * FUTEX_WAKE empties the queue in one step: the kernel guarantees that.
 *
 * Not modelled: spinning and yielding before the sleep (they only read the word earlier), deadlines
 * (group.pml), memory orders (all steps are sequentially consistent, as in the C++ here).
 *
 * A slice of sleep ends by itself in C++ (20 ms). Here it does so only SLICES times in a wait and
 * only when nothing else in the model can run, so a lost wake-up becomes a deadlock.
 */
#ifndef RANKS
#define RANKS 3 /* one owner of the word, the others wait */
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef SLICES
#define SLICES 0 /* slices of sleep a waiter may need in one wait */
#endif
#ifndef DEATHS
#define DEATHS 0 /* 1: the owner may die */
#endif
#ifndef GIVE_UPS
#define GIVE_UPS 0 /* 1: the owner may give up */
#endif
#ifdef RING
#define OWNERS 2 /* ring(): several peers add to one doorbell */
#else
#define OWNERS 1
#endif
#define WAITERS (RANKS - OWNERS)
#define LAST (ROUNDS * OWNERS)

byte value;    /* WaitWord::value */
byte sleepers; /* WaitWord::sleepers */
bool asleep[RANKS]; /* the kernel's queue for the word */
bool gave_up;
bool dead;
byte ended;

/* Two owners add to one word: its value may already be higher than ours. */
#define ready() (value >= wanted)

inline wake_all() {
    d_step { k = 0; do :: k < RANKS -> asleep[k] = false; k++ :: else -> break od; k = 0 }
}

inline post() {
#ifdef BUG_WAKE_BEFORE_VALUE
    awake = sleepers == 0;
    value = value + 1;
    if :: !awake -> wake_all() :: else fi
#else
    value = value + 1;
    if :: sleepers != 0 -> wake_all() :: else fi
#endif
}

/* FUTEX_WAIT: sleeps only if the word still has the value that the caller has read. */
inline sleep_on() {
    atomic {
#ifdef BUG_NO_COMPARE
        asleep[self] = true;
#else
        if :: value == seen -> asleep[self] = true :: else fi;
#endif
    }
    if
    :: !asleep[self]
    :: timeout && asleep[self] && slices < SLICES -> asleep[self] = false; slices++
    fi
}

proctype Owner(byte self) {
    byte posted, k;
    bool awake;
    {
        do
        :: posted < ROUNDS -> post(); posted++
        :: GIVE_UPS > 0 && posted < ROUNDS -> gave_up = true; wake_all(); break
        :: posted == ROUNDS -> break
        od
    } unless { dead };
    ended++
}

proctype Waiter(byte self) {
    byte wanted, seen, slices;
    do
    :: wanted < LAST ->
        wanted++;
        slices = 0;
        if :: ready() -> goto next :: else fi;
        sleepers++; /* Sleeper: announces itself during its lifetime */
        do
        :: true ->
            seen = value;
#ifndef BUG_NO_SECOND_LOOK
            if :: ready() -> break :: else fi;
#endif
            /* check(): */
            if :: gave_up -> goto thrown :: else fi;
#ifndef BUG_NO_DEATH_CHECK
            if :: dead -> goto thrown :: else fi;
#endif
#ifdef BUG_NO_SECOND_LOOK
            sleep_on();
            if :: ready() -> break :: else fi
#else
            if :: ready() -> break :: else fi; /* a peer may have arrived and then died */
            sleep_on()
#endif
        od;
        sleepers--; /* ~Sleeper */
next:   skip
    :: else -> break
    od;
    goto out;
thrown:
    sleepers--; /* ~Sleeper; group.pml shows that the throw was right */
out:
    ended++
}

proctype Killer() {
    if :: DEATHS > 0 -> dead = true :: true fi
}

init {
    byte k = 0;
    atomic {
        do
        :: k < RANKS ->
            if :: k < OWNERS -> run Owner(k) :: else -> run Waiter(k) fi;
            k++
        :: else -> break
        od;
        run Killer()
    }
}

ltl ends { <>(ended == RANKS) }
