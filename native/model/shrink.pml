/* native/model/shrink.pml: the survivors of a group agree on a new one, and continue in it.
 *
 * Models Communicator::shrink(), Group::shrink() and Group::prepare(): each survivor sets a mark in
 * its Member; waits until each other member is marked, has left or is dead; the lowest living
 * marked member prepares a group of all members that are marked and alive, and publishes it with one
 * compare-exchange on a word of the old GroupHeader; the others wait for that word; if the lowest
 * dies first, the next lowest takes over; a rank that loses the compare-exchange drops its group.
 *
 * Every rank runs one collective in the group (one barrier; group.pml has the rest of it), shrinks
 * if that fails, and runs the collective again in the new group, as often as needed. When it has
 * succeeded, it closes the group. A rank may die between any two steps. Each access to shared memory
 * is a step of its own; sets of ranks are bits of a byte, of which each rank writes only its own.
 *
 * Not modelled: sleeping (wait.pml), what the collective computes (group.pml), lack of memory for the
 * new group.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LEAVERS
#define LEAVERS 0 /* ranks that close the group instead of calling the collective */
#endif
#ifndef QUITS
#define QUITS 0 /* collectives that end at a deadline */
#endif
#ifndef SHRINK_QUITS
#define SHRINK_QUITS 0 /* shrinks that end at a deadline */
#endif
#ifndef GROUPS
#define GROUPS 7 /* prepared groups, the first included */
#endif

#define ALL ((1 << RANKS) - 1)
#define PUBLISHED 64 /* in `word`: the group is in the lower bits; else these are a version */
#define bit(q) (1 << (q))

/* ---- shared memory, by group ---- */
byte members[GROUPS]; /* world_ranks */
byte marked[GROUPS];  /* Member: the mark */
byte left[GROUPS];    /* Member: gave_up == LeaveReason::closed */
byte broken[GROUPS];  /* Member: gave_up, for any other reason */
byte arrived[GROUPS]; /* Member: turn */
byte word[GROUPS];    /* GroupHeader: the group that follows this one */
byte next_group = 1;

/* ---- the world ---- */
byte dead;
byte leavers, quits, shrink_quits;

/* ---- what the assertions need to know ---- */
byte followed[GROUPS]; /* the group in which the first rank that shrank continued */
bool prepared[GROUPS];
byte finished;

#define gone(g) (left[g] | broken[g] | dead)
#define came(g) ((members[g] & ~arrived[g]) == 0)
#define lost(g) ((members[g] & ~arrived[g] & gone(g)) != 0)

#ifdef BUG_GAVE_UP_IS_LEFT
#define has_left(g) (left[g] | broken[g])
#else
#define has_left(g) left[g]
#endif

/* A wait that ends at a deadline leaves for good; its mark stays. */
#define MAY_EXPIRE :: atomic { shrink_quits < SHRINK_QUITS -> shrink_quits++ }; goto expired

inline claim_published() {
    /* no rank that was dead when the list was started is in it */
    assert((members[made] & dead_before) == 0);
    /* and no living rank that has not left is missing from it */
    assert((members[g] & ~(dead | left[g] | members[made])) == 0)
}

inline claim_followed() {
    assert(prepared[word[g] & 63]);
    assert(followed[g] == 0 || followed[g] == word[g]);
    followed[g] = word[g]
}

proctype Rank(byte rank_) {
    byte g, q, made, list, version, dead_before;
    {
        g = 0;
collective:
        if
        :: atomic { leavers < LEAVERS && g == 0 -> leavers++ }; goto close
        :: true
        fi;
        arrived[g] = arrived[g] | bit(rank_);
        if
        :: came(g) -> goto close
        :: lost(g)
        :: atomic { quits < QUITS && !came(g) -> quits++ }
        fi;
        broken[g] = broken[g] | bit(rank_); /* give_up(): before the mark, for ranks in a barrier */

        /* ---- shrink ---- */
        marked[g] = marked[g] | bit(rank_);
#ifndef BUG_NO_WAIT_FOR_MARKS
        q = 0;
        do
        :: q < RANKS ->
            if
            :: (((~members[g]) | marked[g] | has_left(g) | dead) & bit(q)) != 0
            MAY_EXPIRE
            fi;
            q++
        :: else -> break
        od;
#endif
elect:
        version = word[g];
        if :: version >= PUBLISHED -> goto follow :: else fi;
        q = 0;
        do
        :: q == rank_ -> break
        :: q < rank_ && (members[g] & marked[g] & ~has_left(g) & ~dead & bit(q)) != 0 ->
            if /* that rank prepares the group; wait for the word, or for its death */
            :: word[g] >= PUBLISHED
#ifndef BUG_NO_TAKEOVER
            :: ((dead | has_left(g)) & bit(q)) != 0
#endif
            MAY_EXPIRE
            fi;
            goto elect
        :: q < rank_ && (members[g] & marked[g] & ~has_left(g) & ~dead & bit(q)) == 0 -> q++
        od;

        /* Group::prepare() with the ranks that are marked and alive */
        atomic { dead_before = dead; list = 0; q = 0 };
        do
        :: atomic { q < RANKS ->
                if
                :: q == rank_ -> list = list | bit(q)
#ifdef BUG_DEAD_IN_LIST
                :: q != rank_ -> list = list | (members[g] & marked[g] & ~has_left(g) & bit(q))
#else
                :: q != rank_ -> list = list | (members[g] & marked[g] & ~has_left(g) & ~dead & bit(q))
#endif
                fi;
                q++
            }
        :: else -> break
        od;
        atomic { assert(next_group < GROUPS); made = next_group; next_group++ };
#ifndef BUG_PUBLISH_BEFORE_PREPARE
        atomic { members[made] = list; prepared[made] = true };
#endif
        atomic {
#ifdef BUG_PLAIN_STORE
            word[g] = PUBLISHED | made; claim_published()
#else
            if /* compare_exchange */
            :: word[g] == version -> word[g] = PUBLISHED | made;
#ifndef BUG_PUBLISH_BEFORE_PREPARE
                claim_published()
#endif
            :: else -> list = 0; made = 0; dead_before = 0; goto elect /* drop ours */
            fi
#endif
        };
#ifdef BUG_PUBLISH_BEFORE_PREPARE
        atomic { members[made] = list; prepared[made] = true };
#endif

follow:
        atomic {
            claim_followed();
            list = 0; made = 0; dead_before = 0; version = 0; q = 0;
            g = word[g] & 63;
            assert((members[g] & bit(rank_)) != 0)
        };
        goto collective;

expired: /* the deadline of our shrink has passed */
        left[g] = left[g] | bit(rank_);
#ifdef VERSIONED
        do
        :: version = word[g];
            if
            :: version >= PUBLISHED && (members[version & 63] & bit(rank_)) != 0 -> goto follow
            :: version >= PUBLISHED && (members[version & 63] & bit(rank_)) == 0 -> break
            :: else
            fi;
            /* compare_exchange: a rank that prepares now must read the marks again */
            atomic { if :: word[g] == version -> word[g] = version + 1; break :: else fi }
        od;
#endif
        goto end_of_rank;

close:  left[g] = left[g] | bit(rank_);
end_of_rank:
        skip
    } unless { (dead & bit(rank_)) != 0 };
    finished++
}

proctype Killer() {
    byte deaths;
    do
    :: deaths < DEATHS && (dead & 1) == 0 -> atomic { dead = dead | 1; deaths++ }
    :: deaths < DEATHS && (dead & 2) == 0 -> atomic { dead = dead | 2; deaths++ }
#if RANKS > 2
    :: deaths < DEATHS && (dead & 4) == 0 -> atomic { dead = dead | 4; deaths++ }
#endif
#if RANKS > 3
    :: deaths < DEATHS && (dead & 8) == 0 -> atomic { dead = dead | 8; deaths++ }
#endif
    :: true -> break
    od
}

init {
    byte k = 0;
    atomic {
        members[0] = ALL;
        do
        :: k < RANKS -> run Rank(k); k++
        :: else -> break
        od;
        run Killer()
    }
}

ltl ends { <>(finished == RANKS) }
