// Package approvals stores requests for an operator's approval: which are pending, which were decided,
// and which approvals are spent.
//
// An approval is for one call with the arguments of the request, and is spent by that call. A rule may
// let an approval last for a while; then it holds for the same caller, the same tool and the same
// arguments. The records are in a file that the command line and the running host share.
package approvals

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"sync"
	"time"

	"gatehouse/internal/files/sqlfile"
)

// State is the state of a request for approval.
type State string

const (
	Pending State = "pending"
	Allowed State = "allowed"
	Refused State = "refused"
	Expired State = "expired" // no decision in time
	Spent   State = "spent"   // allowed, and used by a call
)

// Request is one request for an operator's approval.
type Request struct {
	ID    string `json:"id"`
	Owner string `json:"owner"` // principal and context of the caller
	Tool  string `json:"tool"`
	// canonical, in the form that Shown returns
	Args    json.RawMessage `json:"arguments" doc:"in the form that an operator sees"`
	Rule    string          `json:"rule"`
	State   State           `json:"state"`
	By      string          `json:"by,omitempty"` // the operator who decided
	Created time.Time       `json:"created"`
	Until   time.Time       `json:"until"` // when it expires
	Caller  Caller          `json:"-"`     // whose decision does not count
}

// ByLogin ends the name of an operator who decided with a login of the host and not with a command.
const ByLogin = ", logged in"

// Caller is the credential and the session with which a call was made. Its zero value means that they are unknown.
type Caller struct{ Credential, Session string }

// Is reports whether a decision would come from the credential or the session that made the call, or whether these
// are unknown.
func (c Caller) Is(by Caller) bool {
	return c.Credential == "" || c.Credential == by.Credential || c.Session != "" && c.Session == by.Session
}

// The errors that Decide returns.
var (
	ErrNotFound = errors.New("no such approval")
	ErrDecided  = errors.New("decided already")
	ErrOwnCall  = errors.New("the login or session that made the call cannot decide about it")
)

const schema = `
CREATE TABLE request (
	id TEXT PRIMARY KEY, owner TEXT NOT NULL, tool TEXT NOT NULL, args BLOB NOT NULL, rule TEXT NOT NULL,
	state TEXT NOT NULL, by TEXT NOT NULL, created INTEGER NOT NULL, until INTEGER NOT NULL);
CREATE INDEX request_state ON request (state, until);
CREATE TABLE mark (key TEXT PRIMARY KEY, until INTEGER NOT NULL);`

// additions are later tables, which files of earlier versions get when they are opened.
const additions = `
CREATE TABLE IF NOT EXISTS caller (id TEXT PRIMARY KEY, credential TEXT NOT NULL, session TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS proof (id TEXT PRIMARY KEY, signature BLOB NOT NULL);`

// Options configures a Store.
type Options struct {
	Log  *slog.Logger
	Wait time.Duration // how long a request waits for a decision; 0 means 1 h
	Look time.Duration // how often the file is read for decisions of other processes; 0 means 500 ms
	// Proof is the path of the file that verifies the passphrase of each approval; "" means that no
	// passphrase is needed. Open reads it once. A file that replaces it later is ignored, because any
	// program of the same account could put its own proof there.
	Proof string
	// Passkeys verifies the passkey that each approval needs; nil means that none is needed.
	Passkeys Passkeys
	Now      func() time.Time // nil means time.Now
	// Asked is called with each request that Ask has added, and returns at once; nil means that nothing is called.
	Asked func(Request)
}

// Passkeys verifies the use of a passkey. challenge is the digest of the approved request.
type Passkeys interface {
	// Approve accepts the assertion of a passkey of a user. It accepts each one once.
	Approve(ctx context.Context, user string, challenge, assertion []byte) error
	// Approved verifies an assertion that Approve has accepted, here or in another process.
	Approved(ctx context.Context, challenge, assertion []byte) error
}

// Evidence is what a person gives besides a decision, if an approval needs it.
type Evidence struct {
	Passphrase []byte
	Assertion  []byte // of a passkey: JSON
}

// Store holds the approvals of a host. It is safe for concurrent use.
type Store struct {
	opts Options
	file sqlfile.File

	proof    *Proof // nil if none is needed, or if it could not be read
	proofErr error  // the error of reading the proof

	mu      sync.Mutex
	waiting map[string]wait      // the pending requests of this process
	lasting map[string]time.Time // with a proof: until when approvals last, by sameCall
	proved  map[string]time.Time // with a proof: calls for which a proven approval was spent, by digest
}

// wait is a pending request of this process, in the form in which it was made. Another process may have
// changed the record in the file by the time of the decision.
type wait struct {
	asked Request
	tell  func(Request) // called once
}

// Open opens the store in the file at path, which need not exist; "" keeps it in memory.
func Open(path string, o Options) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Wait == 0 {
		o.Wait = time.Hour
	}
	if o.Look == 0 {
		o.Look = 500 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	b := &Store{
		opts:    o,
		file:    sqlfile.File{Path: path, Schema: schema, Version: 1, Additions: additions},
		waiting: map[string]wait{},
		lasting: map[string]time.Time{},
		proved:  map[string]time.Time{},
	}
	if o.Passkeys == nil && o.Proof != "" {
		b.proof, b.proofErr = LoadProof(o.Proof)
	}
	return b
}

// ProofErr returns why no approval counts in this store: a passphrase is needed, and the file of its
// proof could not be read when the store was opened.
func (b *Store) ProofErr() error { return b.proofErr }

// Replicate makes the store the same on all nodes of a cluster, before it is used: replicate gets its file.
func (b *Store) Replicate(replicate func(*sqlfile.File) error) error { return replicate(&b.file) }

// Close closes the file.
func (b *Store) Close() error { return b.file.Close() }

const waits = "waits for an operator's approval, "

var awaited = regexp.MustCompile(waits + `(ap_[A-Z2-7]+)`)

// Waits says that a call waits for a request to be decided.
func Waits(id string) string { return waits + id }

// Awaited returns the id of the request that a text of Waits begins with or contains, or "".
func Awaited(text string) string {
	if m := awaited.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// Ask adds a pending request. Run calls decided once, after the request has been decided or has
// expired. The error is a *TooLong if the command of the call cannot be shown in full; then no request
// is made.
func (b *Store) Ask(
	owner, tool, rule string, by Caller, args json.RawMessage, decided func(Request),
) (Request, error) {
	args, err := Shown(args)
	if err != nil {
		return Request{}, err
	}
	now := b.opts.Now().UTC().Truncate(time.Millisecond)
	r := Request{
		ID: "ap_" + rand.Text(), Owner: owner, Tool: tool, Args: args, Rule: rule,
		State: Pending, Created: now, Until: now.Add(b.opts.Wait), Caller: by,
	}
	b.mu.Lock()
	b.waiting[r.ID] = wait{r, decided}
	b.mu.Unlock()
	err = b.change(func(tx *sql.Tx) error {
		if _, err := tx.Exec("INSERT INTO caller VALUES (?,?,?)", r.ID, by.Credential, by.Session); err != nil {
			return err
		}
		_, err := tx.Exec("INSERT INTO request VALUES (?,?,?,?,?,?,'',?,?)",
			r.ID, owner, tool, []byte(args), rule, Pending, r.Created.UnixMilli(), r.Until.UnixMilli())
		return err
	})
	if err != nil {
		b.takeCallback(r.ID)
	} else if b.opts.Asked != nil {
		b.opts.Asked(r)
	}
	return r, err
}

// changeTime bounds one change, which in a cluster waits for other nodes.
const changeTime = 15 * time.Second

// change changes the file; in a cluster, that of all nodes. f may run more than once.
func (b *Store) change(f func(*sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), changeTime)
	defer cancel()
	return b.file.Change(ctx, f)
}

// changeOne runs a statement and reports whether it changed one row. Of all nodes of a cluster one does.
func (b *Store) changeOne(statement string, args ...any) (one bool, err error) {
	err = b.change(func(tx *sql.Tx) error {
		res, err := tx.Exec(statement, args...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		one = n == 1
		return err
	})
	return one && err == nil, err
}

func (b *Store) takeCallback(id string) func(Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.waiting[id].tell
	delete(b.waiting, id)
	return f
}

// Proves reports whether an approval needs a passphrase or a passkey in this store.
func (b *Store) Proves() bool { return b.opts.Proof != "" || b.opts.Passkeys != nil }

// Needs returns what an approval needs besides a decision: none, passphrase or passkey.
func (b *Store) Needs() string {
	switch {
	case b.opts.Passkeys != nil:
		return "passkey"
	case b.opts.Proof != "":
		return "passphrase"
	}
	return "none"
}

// Challenge returns what a passkey must sign to approve a request.
func Challenge(r Request) []byte { return signed(r) }

// proven returns the reason for which the approval of a request does not count, or nil.
func (b *Store) proven(r Request) error {
	if !b.Proves() {
		return nil
	}
	if b.proofErr != nil {
		return b.proofErr
	}
	db, err := b.file.DB()
	if err != nil {
		return err
	}
	var signature []byte
	err = db.QueryRow("SELECT signature FROM proof WHERE id=?", r.ID).Scan(&signature)
	switch {
	case err != nil:
		return ErrUnproven
	case b.opts.Passkeys != nil:
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := b.opts.Passkeys.Approved(ctx, Challenge(r), signature); err != nil {
			return fmt.Errorf("%w: %w", ErrUnproven, err)
		}
	case !b.proof.checks(r, signature):
		return ErrUnproven
	}
	return nil
}

// prove stores the signature of an approval.
func (b *Store) prove(id string, signature []byte) error {
	if len(signature) == 0 || !b.file.Exists() {
		return nil
	}
	_, err := b.changeOne("INSERT OR REPLACE INTO proof VALUES (?,?)", id, signature)
	return err
}

// Decide approves or denies a pending request.
func (b *Store) Decide(id string, yes bool, by string) (Request, error) {
	to := Refused
	if yes {
		to = Allowed
	}
	return b.move(id, to, by)
}

// DecideProven approves a pending request with a signature that Proof.Sign returned, or the assertion of a passkey.
func (b *Store) DecideProven(id, by string, signature []byte) (Request, error) {
	if err := b.prove(id, signature); err != nil {
		return Request{}, err
	}
	return b.move(id, Allowed, by)
}

// DecideAs approves or denies a pending request for a person who logged in to the host. The error is ErrOwnCall if
// the login or the session of the person made the call. If an approval needs a passphrase, that of the evidence must
// be the right one. If it needs a passkey, user must have used one for this request.
func (b *Store) DecideAs(
	ctx context.Context, id string, yes bool, user string, who Caller, given Evidence,
) (Request, error) {
	by := user + ByLogin
	r, err := b.Get(id)
	if err != nil {
		return r, err
	}
	b.mu.Lock()
	if w, here := b.waiting[id]; here { // as it was made: another process may have changed the file
		r = w.asked
	}
	b.mu.Unlock()
	switch {
	case r.Caller.Is(who):
		return r, ErrOwnCall
	case !yes || !b.Proves():
		return b.Decide(id, yes, by)
	case b.proofErr != nil:
		return r, b.proofErr
	case r.State != Pending:
		return r, fmt.Errorf("%w: %s", ErrDecided, r.State)
	case b.opts.Passkeys != nil:
		if err := b.opts.Passkeys.Approve(ctx, user, Challenge(r), given.Assertion); err != nil {
			return r, fmt.Errorf("%w: %w", ErrPasskey, err)
		}
		return b.DecideProven(id, by, given.Assertion)
	}
	signature, err := b.proof.Sign(given.Passphrase, r)
	if err != nil {
		return r, err
	}
	return b.DecideProven(id, by, signature)
}

// move changes the state of a pending request.
func (b *Store) move(id string, to State, by string) (Request, error) {
	if !b.file.Exists() {
		return Request{}, ErrNotFound
	}
	one, err := b.changeOne("UPDATE request SET state=?, by=? WHERE id=? AND state=? AND (? OR until>?)",
		to, by, id, Pending, to == Expired, b.opts.Now().UnixMilli())
	if err != nil {
		return Request{}, err
	}
	r, err := b.Get(id)
	if err == nil && !one {
		err = fmt.Errorf("%w: %s", ErrDecided, r.State)
	}
	return r, err
}

// Get returns the request with an id.
func (b *Store) Get(id string) (Request, error) {
	list, err := b.listRequests("WHERE id=?", id)
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Request{}, err
	}
	return list[0], nil
}

// Pending lists the pending requests, oldest first. With all it also lists the requests that were
// decided within the last day.
func (b *Store) Pending(all bool) ([]Request, error) {
	now := b.opts.Now()
	if all {
		return b.listRequests("WHERE created>? ORDER BY created", now.Add(-24*time.Hour).UnixMilli())
	}
	return b.listRequests("WHERE state=? AND until>? ORDER BY created", Pending, now.UnixMilli())
}

func (b *Store) listRequests(where string, args ...any) ([]Request, error) {
	if !b.file.Exists() {
		return nil, nil
	}
	db, err := b.file.DB()
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(`SELECT id, owner, tool, args, rule, state, by, created, until,
		coalesce((SELECT credential FROM caller WHERE caller.id = request.id), ''),
		coalesce((SELECT session FROM caller WHERE caller.id = request.id), '') FROM request `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []Request
	for rows.Next() {
		var r Request
		var created, until int64
		var raw []byte
		if err := rows.Scan(&r.ID, &r.Owner, &r.Tool, &raw, &r.Rule, &r.State, &r.By, &created, &until,
			&r.Caller.Credential, &r.Caller.Session); err != nil {
			return nil, err
		}
		r.Args, r.Created, r.Until = raw, time.UnixMilli(created).UTC(), time.UnixMilli(until).UTC()
		list = append(list, r)
	}
	return list, rows.Err()
}

// Spend spends an operator's approval. It returns false if no approval exists for this call, or if it
// was spent before. It returns an error if, for example, the approval was given without the passphrase
// that this host requires.
func (b *Store) Spend(r Request, owner, tool string) (bool, error) {
	id := r.ID
	if err := b.proven(r); err != nil {
		return false, err
	}
	return b.changeOne("UPDATE request SET state=? WHERE id=? AND owner=? AND tool=? AND state=?",
		Spent, id, owner, tool, Allowed)
}

// Once marks a key as used for a while and reports whether it was unused. It makes a sealed answer
// valid for one call only, also after a restart.
func (b *Store) Once(key string, life time.Duration) (bool, error) {
	return b.mark("once "+key, life)
}

// Remember lets an approval last for the same call for a while.
func (b *Store) Remember(owner, tool string, args json.RawMessage, hold time.Duration) error {
	key := sameCall(owner, tool, args)
	if b.Proves() { // not from the file: any program of the same account can write to it
		b.rememberUntil(b.lasting, key, hold)
		return nil
	}
	_, err := b.mark(key, hold)
	return err
}

// Remembered reports whether a lasting approval holds for this call, if the rule lets approvals last
// for hold. An approval that would last longer than hold was given before the clock was set back, and
// does not count.
func (b *Store) Remembered(owner, tool string, args json.RawMessage, hold time.Duration) (bool, error) {
	key := sameCall(owner, tool, args)
	if b.Proves() {
		return b.kept(b.lasting, key), nil
	}
	if !b.file.Exists() {
		return false, nil
	}
	db, err := b.file.DB()
	if err != nil {
		return false, err
	}
	var until int64
	err = db.QueryRow("SELECT until FROM mark WHERE key=?", key).Scan(&until)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	left := time.UnixMilli(until).Sub(b.opts.Now())
	return err == nil && left > 0 && left <= hold, err
}

// Proved records, if a proof is required, that a proven approval was spent on the call with this
// digest. It is needed because the state that a client returns is sealed with a key that any program of
// the account can read.
func (b *Store) Proved(digest string, life time.Duration) {
	if b.Proves() {
		b.rememberUntil(b.proved, digest, life)
	}
}

// WasProved reports whether a proven approval was spent on a call. It returns true if this store needs
// no proof.
func (b *Store) WasProved(digest string) bool { return !b.Proves() || b.kept(b.proved, digest) }

// rememberUntil and kept use the monotonic clock, because times in memory keep their monotonic reading:
// setting the clock changes nothing.
func (b *Store) rememberUntil(m map[string]time.Time, key string, life time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.opts.Now()
	maps.DeleteFunc(m, func(_ string, until time.Time) bool { return until.Before(now) })
	m[key] = now.Add(life)
}

func (b *Store) kept(m map[string]time.Time, key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return m[key].After(b.opts.Now())
}

func (b *Store) mark(key string, life time.Duration) (fresh bool, err error) {
	now := b.opts.Now()
	return b.changeOne("INSERT INTO mark VALUES (?1,?2) ON CONFLICT (key) DO UPDATE SET until=?2 WHERE until<?3",
		key, now.Add(life).UnixMilli(), now.UnixMilli())
}

// sameCall returns a key for a call by its caller, its tool and its arguments.
func sameCall(owner, tool string, args json.RawMessage) string {
	h := sha256.New()
	for _, part := range []string{owner, tool, string(args)} {
		fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return "same " + hex.EncodeToString(h.Sum(nil))
}

// Run reports decisions, also those of other processes, to the callbacks of Ask until ctx is done. Then
// it reports requests that are still pending as expired.
func (b *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(b.opts.Look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			b.giveUp()
			return nil
		case <-tick.C:
			b.poll(b.opts.Now())
		}
	}
}

func (b *Store) poll(now time.Time) {
	b.mu.Lock()
	ids := make([]string, 0, len(b.waiting))
	for id := range b.waiting {
		ids = append(ids, id)
	}
	b.mu.Unlock()
	for _, id := range ids {
		r, err := b.Get(id)
		if err == nil && r.State == Pending && now.After(r.Until) {
			r, err = b.move(id, Expired, "")
		}
		if errors.Is(err, ErrNotFound) { // Ask waits for the other nodes before it is in the file
			continue
		}
		if err != nil {
			b.opts.Log.Error("approval cannot be read", "approval", id, "err", err)
			continue
		}
		if r.State == Pending {
			continue
		}
		b.mu.Lock()
		w := b.waiting[id]
		b.mu.Unlock()
		if tell := b.takeCallback(id); tell != nil {
			w.asked.State, w.asked.By = r.State, r.By
			tell(w.asked)
		}
	}
}

// giveUp expires the pending requests that this process waits for.
func (b *Store) giveUp() {
	b.mu.Lock()
	waiting := b.waiting
	b.waiting = map[string]wait{}
	b.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	if err := b.change(func(tx *sql.Tx) error { // all at once, because most nodes of a cluster may be gone
		for id := range waiting {
			if _, err := tx.Exec("UPDATE request SET state=?, by='' WHERE id=? AND state=?", Expired, id, Pending); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.opts.Log.Warn("approvals are left pending", "approvals", len(waiting), "err", err)
	}
}
