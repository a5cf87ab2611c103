package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/sqllog"
	"gatehouse/internal/cluster/statelog"
	"gatehouse/internal/files/sqlfile"
	"gatehouse/internal/state"
)

// memberOptions are what a member is started with, as JSON.
type memberOptions struct {
	Dir, Listen, Advertise string
	Join                   []string
	Program, External      string
	Control                string // HOST:PORT of its answers
	Lease                  time.Duration
}

// operation is what a client asks of a member: what a host does with the stores that its cluster has in common.
type operation struct {
	Kind  string // see member.run
	Key   string
	Value string
	Token uint64
	Until time.Duration // how long it may take
}

// outcome is the answer to an operation.
type outcome struct {
	OK    bool
	Value string
	Token uint64
	Error string // what is known of an operation that failed: "not run", "may have run", "stale" or "refused"
	Text  string
}

// member is the program of one node: the stores of a host, without the rest.
type member struct {
	node   *cluster.Node
	users  *identity.Service
	asked  *approvals.Store
	tree   *state.Tree
	record *cluster.Bucket
	log    *slog.Logger
	skew   atomic.Int64 // nanoseconds by which the clock of this host is wrong

	mu     sync.Mutex
	mounts map[string]*state.Mount[[]string]
	leases map[uint64]*cluster.Lease
}

func (m *member) now() time.Time { return time.Now().Add(time.Duration(m.skew.Load())) }

// runMember is the program of a member. It ends when it is killed.
func runMember(raw string) error {
	var o memberOptions
	if err := json.Unmarshal([]byte(raw), &o); err != nil {
		return err
	}
	m := &member{
		mounts: map[string]*state.Mount[[]string]{}, leases: map[uint64]*cluster.Lease{},
		log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	identity.UseClock(m.now)
	ctx := context.Background()
	if err := m.open(ctx, o); err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.Control)
	if err != nil {
		return err
	}
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var op operation
		if err := json.NewDecoder(r.Body).Decode(&op); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), op.Until)
		defer cancel()
		out, err := m.run(ctx, op)
		if err != nil {
			out.Text = err.Error()
			switch {
			case errors.Is(err, cluster.ErrMayHaveRun), out.Error == "" && ctx.Err() != nil:
				out.Error = "may have run"
			case errors.Is(err, cluster.ErrNotRun):
				out.Error = "not run"
			case errors.Is(err, cluster.ErrStale):
				out.Error = "stale"
			case out.Error == "":
				out.Error = "refused"
			}
		}
		json.NewEncoder(w).Encode(out)
	}))
}

func (m *member) open(ctx context.Context, o memberOptions) (err error) {
	c := cluster.Options{
		Name: "test", Listen: o.Listen, Advertise: o.Advertise, Join: o.Join, Dir: filepath.Join(o.Dir, "cluster"),
		Program: o.Program, Lease: o.Lease, Start: 3 * time.Minute, Log: m.log,
		Now: m.now, Behind: true,
	}
	if o.External != "" {
		c.External = &cluster.External{Address: o.External}
	}
	if m.node, err = cluster.Start(ctx, c); err != nil {
		return err
	}
	replicate := func(name string) func(*sqlfile.File, func() error) error {
		return func(f *sqlfile.File, applied func() error) error {
			l, err := sqllog.Open(ctx, m.node, name, f, m.log, applied)
			if err == nil {
				go l.Run(ctx)
			}
			return err
		}
	}
	m.users, err = identity.Open(filepath.Join(o.Dir, "identity.db"), identity.Options{
		Mode: identity.Required, Log: m.log, Replicate: replicate("identity"),
	})
	if err != nil {
		return err
	}
	go m.users.Run(ctx)
	m.asked = approvals.Open(filepath.Join(o.Dir, "approvals.db"),
		approvals.Options{Log: m.log, Now: m.now, Wait: 1000 * time.Hour})
	if err := m.asked.Replicate(func(f *sqlfile.File) error { return replicate("approvals")(f, nil) }); err != nil {
		return err
	}
	go m.asked.Run(ctx)
	m.node.CaughtUp()
	l, err := statelog.Open(ctx, m.node, "state", "", m.log)
	if err != nil {
		return err
	}
	m.tree = state.New(state.Options{Log: l})
	go m.tree.Run(ctx)
	m.record, err = m.node.Bucket(ctx, "records", cluster.BucketOptions{})
	return err
}

// run runs one operation.
func (m *member) run(ctx context.Context, op operation) (outcome, error) {
	kind, _, _ := strings.Cut(op.Kind, " ")
	switch kind {
	case "fresh":
		return outcome{OK: true}, m.node.Fresh()
	case "clock":
		d, err := time.ParseDuration(op.Value)
		m.skew.Store(int64(d))
		return outcome{OK: true}, err
	case "mount":
		return m.runMount(ctx, op)
	case "record":
		return m.runRecord(ctx, op)
	case "token":
		return m.runToken(ctx, op)
	case "approval":
		return m.runApproval(op)
	case "lease":
		return m.runLease(ctx, op)
	}
	return outcome{}, fmt.Errorf("there is no operation %q", op.Kind)
}

// runMount adds a value to the list of a mount and returns what was there before, or what this node has of the list.
func (m *member) runMount(ctx context.Context, op operation) (out outcome, err error) {
	m.mu.Lock()
	list := m.mounts[op.Key]
	if list == nil {
		if list, err = state.Attach[[]string](ctx, m.tree, "/private/"+op.Key, state.Durable); err != nil {
			m.mu.Unlock()
			return out, err
		}
		m.mounts[op.Key] = list
	}
	m.mu.Unlock()
	if op.Kind == "mount read" {
		all, _, err := list.Get()
		return outcome{OK: true, Value: strings.Join(all, " ")}, err
	}
	_, err = list.Update(ctx, state.Any, func(all *[]string) error {
		out.Value = strings.Join(*all, " ")
		*all = append(*all, op.Value)
		return nil
	})
	out.OK = err == nil
	return out, err
}

// runRecord replaces a record and returns what was there before, or reads it.
func (m *member) runRecord(ctx context.Context, op operation) (out outcome, err error) {
	if op.Kind == "record read" {
		r, err := m.record.Confirmed(ctx, op.Key)
		if errors.Is(err, cluster.ErrNotFound) {
			return outcome{Error: "stale"}, err // a deposed leader may not know it yet
		}
		return outcome{OK: err == nil, Value: string(r.Value)}, err
	}
	r, err := m.record.Get(ctx, op.Key)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		_, err = m.record.Create(ctx, op.Key, []byte(op.Value))
	case err == nil:
		out.Value = string(r.Value)
		_, err = m.record.Update(ctx, op.Key, []byte(op.Value), r.Revision)
	default:
		return outcome{Error: "not run"}, err
	}
	out.OK = err == nil
	return out, err
}

// runToken creates, revokes and uses tokens, as the command line and the way of a request into a host do.
func (m *member) runToken(ctx context.Context, op operation) (outcome, error) {
	switch op.Kind {
	case "token user":
		err := m.users.AddUser(ctx, op.Key, nil, "")
		if errors.Is(err, identity.ErrTaken) {
			err = nil
		}
		return outcome{OK: err == nil}, err
	case "token create":
		secret, made, err := m.users.CreateToken(ctx, identity.Token{User: "ada", Name: op.Key})
		return outcome{OK: err == nil, Value: made.ID + " " + secret}, err
	case "token revoke":
		err := m.users.RevokeToken(ctx, op.Value)
		if errors.Is(err, identity.ErrNone) {
			return outcome{Error: "none"}, err
		}
		return outcome{OK: err == nil}, err
	}
	r := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1/mcp", nil)
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Authorization", "Bearer "+op.Value)
	_, denied := m.users.HTTP(r)
	if denied != nil && denied.Status != http.StatusUnauthorized {
		return outcome{Error: "stale"}, errors.New(denied.Message)
	}
	return outcome{OK: denied == nil}, m.node.Fresh() // as App.identify asks
}

func (m *member) runApproval(op operation) (outcome, error) {
	args := json.RawMessage(`{"key":"` + op.Key + `"}`)
	switch op.Kind {
	case "approval ask":
		r, err := m.asked.Ask("ada", "tool", "rule", approvals.Caller{Credential: "t_1"}, args, func(approvals.Request) {})
		return outcome{OK: err == nil, Value: r.ID}, err
	case "approval allow", "approval deny":
		_, err := m.asked.Decide(op.Value, op.Kind == "approval allow", "operator")
		if errors.Is(err, approvals.ErrDecided) || errors.Is(err, approvals.ErrNotFound) {
			return outcome{Error: "none"}, err
		}
		return outcome{OK: err == nil}, err
	}
	r, err := m.asked.Get(op.Value)
	if err != nil {
		return outcome{Error: "not run"}, err
	}
	ok, err := m.asked.Spend(r, "ada", "tool")
	return outcome{OK: ok}, err
}

// runLease acquires leases, and writes a record as their holder: the write is refused once a later holder has written.
func (m *member) runLease(ctx context.Context, op operation) (outcome, error) {
	m.mu.Lock()
	lease := m.leases[op.Token]
	m.mu.Unlock()
	switch op.Kind {
	case "lease acquire":
		l, err := m.node.Acquire(ctx, op.Key, time.Second)
		if err != nil {
			return outcome{Error: "may have run"}, err
		}
		m.mu.Lock()
		m.leases[l.Token] = l
		m.mu.Unlock()
		return outcome{OK: true, Token: l.Token}, nil
	case "lease held":
		return outcome{OK: lease != nil && lease.Held()}, nil
	case "lease release":
		if lease == nil {
			return outcome{Error: "not run"}, errors.New("this run of the node did not acquire it")
		}
		err := lease.Release(ctx)
		return outcome{OK: err == nil}, err
	}
	key := op.Key + "/written"
	for {
		var last struct {
			Token uint64
			Value string
		}
		r, err := m.record.Get(ctx, key)
		if err == nil {
			err = json.Unmarshal(r.Value, &last)
		}
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return outcome{Error: "not run"}, err
		}
		if last.Token > op.Token {
			return outcome{Error: "fenced", Value: last.Value}, nil
		}
		raw := fmt.Appendf(nil, `{"Token":%d,"Value":%q}`, op.Token, op.Value)
		if r.Revision == 0 {
			_, err = m.record.Create(ctx, key, raw)
		} else {
			_, err = m.record.Update(ctx, key, raw, r.Revision)
		}
		if !errors.Is(err, cluster.ErrConflict) {
			return outcome{OK: err == nil, Value: last.Value}, err
		}
	}
}
