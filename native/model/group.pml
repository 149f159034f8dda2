/* native/model/group.pml: barriers, slots, the consistency check, and how a group ends.
 *
 * Models (native/group.cpp, group.hpp): Group::run(), begin_step(), commit_slot(), publish(),
 * barrier(), reached(), wait_for(), shut_out(), check_peers(), check_given_up(), raise_departed(),
 * expire(), check_consistency(), give_up(), close(); the order of fill, barrier and drain in
 * collectives.cpp (all_reduce_once() and in_steps(); with SLICED also all_reduce_sliced(); with
 * DIRECT also read_peer() and closing_barrier(), as all_gather_directly() uses them); and
 * Arena::alive().
 *
 * With DIRECT a rank publishes its private memory instead of filling its slot. That is freed as soon
 * as its call has ended, in any way: then a peer reads rubbish, or fails if the process is dead. No
 * call may succeed with rubbish.
 *
 * Each access to shared memory is a step of its own (but see drain()); a write into a slot is two
 * steps, so that a reader can see it half done. A rank may die between any two steps; alive() is
 * false from then on. Where wait_until() would sleep and check again, the model blocks until a check
 * would find something; so a wait that would never end is a deadlock ("invalid end state"). That a
 * sleeper wakes up to check is shown by wait.pml.
 *
 * Not modelled: overflow of the 32-bit turn; descriptors and rows (compare_all() reads them as
 * check_consistency() reads fingerprints, by the same parity and after the same barrier); probe(),
 * which is more barriers; Worker, which orders the calls of threads; interrupted() and stop(), which
 * leave the wait where the deadline does, but also if all have arrived in the meantime: then this
 * rank fails alone, in a call that had succeeded.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef STEPS
#define STEPS 1 /* steps of a call: chunks */
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef QUITS
#define QUITS 0 /* waits that a deadline, Ctrl-C or stop() ends */
#endif
#ifndef SHORTAGES
#define SHORTAGES 0 /* times that commit_slot() finds no memory */
#endif
#ifndef CLOSES
#define CLOSES 0 /* ranks that close the group before the last call */
#endif
#ifndef ODD
#define ODD 0 /* calls that differ from those of the other ranks */
#endif

/* enum class LeaveReason; stopped and interrupted are treated like timeout everywhere */
#define Leave_none 0
#define Leave_closed 1
#define Leave_timeout 3
#define Leave_lost 5
#define Leave_memory 6
#define pack(why, blamed) ((why) | ((blamed) + 1) << 3)
#define reason(word) ((word) & 7)
#define blamed_by(word) (((word) >> 3) - 1)

#define BUSY 255 /* a slot while it is being written */
#define FREED 0  /* private memory after its rank's call */

/* ---- shared memory: Member[], slots, GroupHeader ---- */
byte turn[RANKS];
byte gave_up[RANKS];
byte fingerprint[2 * RANKS];
byte slot[2 * RANKS];
#ifdef SLICED
byte reduced[2 * RANKS]; /* the slice of a slot that its own rank reduces */
#endif
#ifdef DIRECT
byte private[RANKS]; /* memory of the callers: in no rank's slot, but others can read it */
#endif
byte header_closed;
byte header_size = RANKS;

/* ---- the world ---- */
bool dead[RANKS];
byte quits, shortages, closes, odd;

/* ---- what the assertions need to know; no rank reads it ---- */
byte ended[RANKS];        /* calls that ended, with success or a mismatch */
byte failed[RANKS];       /* the call that broke the group for this rank */
byte verdict[CALLS + 1];  /* 1 same, 2 mismatch, as the first rank found */
byte asked[CALLS + 1];    /* whether calls really differ: bit 0 and bit 1 for the two kinds */
byte doomed;              /* the last turn at which a rank arrived after a peer had given it up */
byte released, finished;

#ifdef BUG_ONE_SLOT
#define parity 0
#else
#define parity (step_ & 1)
#endif
#define at(rank) (parity * RANKS + (rank))

/* Turns count in twos: a rank that a peer has shut out has an odd turn, below the even one that
 * would have followed. */
#define STRIDE 2
#define reached(peer) (turn[peer] >= turn_)
#define shut_out(peer) (turn[peer] % STRIDE == 1)

#ifdef BUG_NO_DEATH_CHECK
#define is_dead(peer) false
#else
#define is_dead(peer) dead[peer]
#endif
#define gone(peer) (gave_up[peer] != 0 || is_dead(peer) || shut_out(peer))
#define departed(peer) ((peer) != rank_ && !reached(peer) && gone(peer))
#define missing(peer) ((peer) != rank_ && !reached(peer))
#if RANKS == 2
#define ANY_RANK(what) (what(0) || what(1))
#define CHOOSE(q, what) if :: what(0) -> q = 0 :: what(1) -> q = 1 fi
#elif RANKS == 3
#define ANY_RANK(what) (what(0) || what(1) || what(2))
#define CHOOSE(q, what) if :: what(0) -> q = 0 :: what(1) -> q = 1 :: what(2) -> q = 2 fi
#else
#define ANY_RANK(what) (what(0) || what(1) || what(2) || what(3))
#define CHOOSE(q, what) \
    if :: what(0) -> q = 0 :: what(1) -> q = 1 :: what(2) -> q = 2 :: what(3) -> q = 3 fi
#endif

/* ---- assertions ---- */

/* One outcome: no rank has failed in this call, or in an earlier one. */
#define failed_before(q) (failed[q] != 0 && failed[q] < calls_)
#define failed_here(q) (failed[q] != 0 && failed[q] <= calls_)
#define ended_here(q) (ended[q] >= calls_)
#define ended_after(q) (ended[q] > calls_)

inline claim_ended() {
#ifdef ONE_OUTCOME
    assert(!ANY_RANK(failed_here));
#else
    assert(!ANY_RANK(failed_before));
#endif
#ifdef DIRECT
    private[rank_] = FREED;
#endif
    ended[rank_] = calls_
}

inline claim_failed() {
#ifdef ONE_OUTCOME
    assert(!ANY_RANK(ended_here));
#else
    assert(!ANY_RANK(ended_after));
#endif
    failed[rank_] = calls_
}

/* A rank that arrives at a barrier that a peer has already given up does not pass it (`late`); nor
 * do those that arrived before and were still waiting (`doomed`). */
#define given_up_here(q) \
    (gave_up[q] != 0 && reason(gave_up[q]) != Leave_closed && \
     reason(gave_up[q]) != Leave_memory && turn[q] == turn_)

/* ---- the group ---- */

#ifdef DIRECT
inline fill() {
    private[rank_] = step_
}
#else
inline fill() {
    slot[at(rank_)] = BUSY;
    slot[at(rank_)] = step_
}
#endif

/* Reads what the others have staged. All of it in one step, together with check_consistency():
 * nothing that a rank reads here may change before it arrives at its next barrier. The step may
 * happen at any moment until then, so a change at any moment would be found. */
#define drain(staged) \
    i = 1; \
    do \
    :: i < RANKS -> assert(staged[at((rank_ + i) % RANKS)] == step_); i++ \
    :: else -> i = 0; break \
    od

inline end_step() {
    chunk++;
    if :: chunk == STEPS -> claim_ended() :: else fi
}

inline post() {
    atomic {
        /* compare_exchange from the last turn: fails if a peer has shut us out */
        if
        :: shut_out(rank_) -> why = Leave_lost; blamed = rank_; goto thrown
        :: else
        fi;
        late = ANY_RANK(given_up_here);
        if :: late -> doomed = turn_ :: else fi;
        turn[rank_] = turn_
    }
}

/* Errors name the right ranks: one that is called lost has died, left or given up. */
inline raise_departed(who) {
    if
    :: reason(word) == Leave_none ->
        assert(dead[who] || shut_out(who));
        why = Leave_lost;
        blamed = who
    :: reason(word) == Leave_lost || reason(word) == Leave_memory ->
        blamed = blamed_by(word);
        why = reason(word);
        assert(dead[blamed] || gave_up[blamed] != 0 || shut_out(blamed))
    :: else -> why = Leave_lost; blamed = who
    fi;
    word = 0; q = 0; peer = 0; i = 0; late = false;
    goto thrown
}

/* check_peers() goes through the peers in order; here the order is arbitrary. */
inline check_peers() {
    atomic { if :: ANY_RANK(missing) -> CHOOSE(q, missing) :: else -> goto look fi };
    /* time passes; with nothing to find it continues to sleep */
    (gone(q) || reached(peer) || ANY_RANK(departed));
    if
    :: gone(q)
    :: !gone(q) && ANY_RANK(departed) -> atomic { CHOOSE(q, departed) }
    :: !gone(q) && !ANY_RANK(departed) -> goto look
    fi;
    word = gave_up[q];
    atomic {
        if
        :: word != 0 || is_dead(q) || shut_out(q)
        :: else -> q = 0; word = 0; goto look
        fi
    };
    atomic {
#ifndef BUG_NO_SECOND_LOOK
        if
        :: reached(q) -> q = 0; word = 0; goto look /* it may have arrived and then ended */
        :: else
        fi;
#endif
        raise_departed(q)
    }
}

/* Gives up a barrier by shutting out one peer that has not arrived: from then on nobody can pass it.
 * If all have arrived in the meantime, there is nothing to give up. */
inline expire() {
    q = 0;
    do
    :: atomic { q < RANKS && (q == rank_ || reached(q)) -> q++ }
    :: atomic { q < RANKS && q != rank_ && !reached(q) ->
            /* compare_exchange from the last turn, or another rank has done so */
#ifndef BUG_NO_SHUT_OUT
            if :: shut_out(q) :: else -> turn[q] = turn[q] + 1 fi;
#endif
            why = Leave_timeout; blamed = q; q = 0; peer = 0; i = 0;
            late = false;
            goto thrown
        }
    :: atomic { q == RANKS -> q = 0; break }
    od
}

/* One label and one copy of the waiting loop: Promela copies inlines with their labels. */
#define barrier(back) \
    atomic { turn_ = turn_ + STRIDE; where = back; goto enter_barrier }

proctype Rank(byte rank_) {
    byte turn_, step_, calls_, chunk; /* as in Group */
    byte i, peer, q, word, why, blamed, where, print;
    bool late, mine, same;
#ifdef DIRECT
    bool rubbish;
#endif
    {
        do
        :: calls_ == CALLS -> goto leave
        :: atomic { closes < CLOSES && calls_ < CALLS -> closes++ }; goto leave
        :: atomic { calls_ < CALLS ->
                calls_++;
                mine = 0;
                chunk = 0;
                if :: odd < ODD -> odd++; mine = 1 :: true fi
            };
            do
            :: chunk == STEPS -> break
            :: chunk < STEPS ->
                atomic {
                    step_++; /* begin_step() */
                    if /* commit_slot() */
                    :: shortages < SHORTAGES ->
                        shortages++; why = Leave_memory; blamed = rank_; goto thrown
                    :: true
                    fi
                };
#ifndef BUG_TURN_BEFORE_DATA
                fill();
#endif
                if
                :: chunk == 0 -> /* publish() */
                    atomic {
                        fingerprint[at(rank_)] = calls_ * 2 + mine;
                        asked[calls_] = asked[calls_] | (1 << mine)
                    }
                :: else
                fi;
                barrier(0);
passed_first:
                atomic {
                    i = 1;
                    same = true;
                    do /* check_consistency() */
                    :: chunk == 0 && i < RANKS ->
                        print = fingerprint[at((rank_ + i) % RANKS)];
                        assert(print >> 1 == calls_); /* of this call, not another one */
                        same = same && print == calls_ * 2 + mine;
                        print = 0;
                        i++
#ifdef BUG_NEIGHBOUR_VERDICT
                        ; i = RANKS
#endif
                    :: else -> break
                    od;
                    if
                    :: chunk == 0 ->
                        assert(verdict[calls_] == 0 || verdict[calls_] == (same -> 1 : 2));
                        assert(same == (asked[calls_] != 3));
                        verdict[calls_] = (same -> 1 : 2)
                    :: else
                    fi;
                    i = 0;
                    if
                    :: !same -> claim_ended(); break /* mismatch: continue with the next call */
#ifdef DIRECT
                    :: else -> same = false
                    fi
#else
                    :: else -> same = false; drain(slot)
                    fi
#ifndef SLICED
                    ; end_step()
#endif
#endif
                }
#ifdef DIRECT
                rubbish = false;
                i = 1;
                do /* read_peer(): one peer after the other */
                :: i < RANKS ->
                    atomic {
                        peer = (rank_ + i) % RANKS;
                        if
                        :: dead[peer] -> /* raise_unreadable() */
                            why = Leave_lost; blamed = peer; i = 0; peer = 0;
                            goto thrown
                        :: else -> rubbish = rubbish || private[peer] != step_
                        fi;
                        i++
                    }
                :: else -> i = 0; peer = 0; break
                od;
#ifdef BUG_NO_CLOSING_BARRIER
                atomic { assert(!rubbish); end_step() }
#else
                barrier(1);
passed_closing:
                atomic { assert(!rubbish); end_step() }
#endif
#endif
#ifdef SLICED
                reduced[at(rank_)] = BUSY;
                reduced[at(rank_)] = step_;
                barrier(1);
passed_second:
                atomic { drain(reduced); end_step() }
#endif
            od
        od;

enter_barrier:
        /* turn_ is increased; no fence() is needed, because all steps of the model are in order */
        post();
#ifdef BUG_TURN_BEFORE_DATA
        fill();
#endif
        atomic { i = 1; peer = (rank_ + 1) % RANKS };
        do
        :: i < RANKS ->
look:       do /* wait_for(peer) */
            :: reached(peer) -> break
            :: !reached(peer) -> check_peers()
            :: atomic { !reached(peer) && quits < QUITS -> quits++ };
                expire()
            od;
            atomic {
                i++;
                peer = (rank_ + i) % RANKS
            }
        :: else -> break
        od;
        atomic {
            assert(!late);
            assert(doomed != turn_);
            i = 0; peer = 0; q = 0; word = 0;
            if
            :: where == 0 -> goto passed_first
#ifdef SLICED
            :: else -> goto passed_second
#endif
#if defined(DIRECT) && !defined(BUG_NO_CLOSING_BARRIER)
            :: else -> goto passed_closing
#endif
            fi
        }

thrown: /* Group::run() catches: the group is broken for us */
        atomic {
            gave_up[rank_] = pack(why, blamed); /* give_up() */
            why = 0; blamed = 0;
            claim_failed()
        };
#ifdef DIRECT
        private[rank_] = FREED; /* its caller may do that now */
#endif

leave:  /* close() */
        if
        :: failed[rank_] == 0 -> gave_up[rank_] = pack(Leave_closed, rank_)
        :: else
        fi;
        atomic { header_closed++; i = header_closed };
        /* header_->size is read after the increment: the pages may be released and read 0 */
        if
        :: i == header_size -> atomic { released++; assert(released == 1); header_size = 0 }
        :: else
        fi
    } unless { dead[rank_] };
    finished++
}

#define lives(q) (!dead[q])

proctype Killer() {
    byte deaths, q;
    do
    :: deaths < DEATHS ->
        atomic { CHOOSE(q, lives); dead[q] = true; deaths++ }
    :: true -> break
    od
}

init {
    byte k = 0;
    atomic {
        do
        :: k < RANKS -> run Rank(k); k++
        :: else -> break
        od;
        run Killer()
    }
}

ltl ends { <>(finished == RANKS) }
