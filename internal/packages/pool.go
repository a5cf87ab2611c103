package packages

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// Whom an instance of a package's server serves; see Record.Instances.
const (
	AutoInstances      = "auto"      // callers that can answer questions get instances of their own
	SharedInstances    = "shared"    // one instance for all callers; the server can ask none of them
	PrincipalInstances = "principal" // each caller has instances of its own
	SessionInstances   = "session"   // each session has, until it ends
)

const (
	modernRevision = "2026-07-28" // its servers ask by results, so that one connection serves all callers

	maxKeyInstances  = 8               // instances with one key
	maxInstanceCalls = 16              // calls that run at once on an instance that serves one caller
	queuePatience    = 2 * time.Second // for a call of an instance to end, before another instance is started
	attributionWait  = 30 * time.Second
)

// asksFor are the abilities that a server can make use of.
const asksFor = tool.CanElicit | tool.CanElicitURL | tool.CanSample | tool.CanSampleTools | tool.CanListRoots

// instanceKey says whom an instance serves. The zero key is that of the shared instance,
// which declares no capability. What is declared is part of the key, because a server
// learns it once, when it is started.
type instanceKey struct {
	owner   string // a principal in a context
	can     tool.Abilities
	roots   string // the caller's answer to roots/list; "" if it is not known
	folders string // as roots, if what the instance may use depends on them; see announcedGrant
	session string // only with SessionInstances
	task    string // the staged task that it is part of; see Staging
	login   string // the principal whose login is used; only with PrincipalLogin
	// older says that the connection speaks an older revision although the server's newest is the modern one.
	older bool
}

// Peer is the caller of a request to a server: what the server may ask it, and what it has
// answered. A nil *Peer can answer nothing.
type Peer struct {
	Caller   *tool.Caller
	State    []byte                                 // tool.Call.State
	Answers  map[string]tool.Answer                 // tool.Call.Answers
	Progress func(done, total float64, note string) // nil drops it
	Logs     string                                 // the lowest level of log messages that it wants; see tool.Call
	// Log receives the params of log messages that belong to its request; nil drops them.
	Log func(level slog.Level, params tool.LogMessage)
	// Task says that the tool runs as a task alone, which a legacy server must be asked for.
	Task bool
	// Staged is the staged task that the request belongs to; nil if it belongs to none.
	Staged *Staging
}

// can returns what of the caller's abilities a server can use.
func (from *Peer) can() tool.Abilities {
	if from == nil || from.Caller == nil {
		return 0
	}
	return from.Caller.Can & asksFor
}

// connection names the connection of a legacy caller; "" if requests of several
// connections cannot be told apart.
func (from *Peer) connection() string {
	if from == nil || from.Caller == nil {
		return ""
	}
	return cmp.Or(from.Caller.Session, from.Caller.Connection)
}

// keyOf returns the key of the instances that serve a caller, except for its roots. A legacy caller is served by
// a session of its own revision if the server has both eras and newest is not set; p.mu is held.
func (p *managedPackage) keyOf(from *Peer, newest bool) (k instanceKey) {
	mode, can := cmp.Or(p.rec.Instances, AutoInstances), from.can()
	if from == nil || from.Caller == nil {
		return k
	}
	modern := p.rec.Server.Protocol == modernRevision
	older := modern && p.bothEras && !newest && mode == AutoInstances && from.connection() != ""
	if modern && !older {
		can = 0
	}
	if p.rec.Login == PrincipalLogin {
		k.owner, k.login = ownerOf(from.Caller), from.Caller.Principal
	}
	if mode == SharedInstances || mode == AutoInstances && can == 0 && !older {
		return k
	}
	k.owner, k.can, k.older = ownerOf(from.Caller), can, older
	if mode == SessionInstances {
		k.session = cmp.Or(from.connection(), "client "+from.Caller.Client)
	}
	return k
}

// errNewest is returned instead of a session of an older revision: the request has to use the shared connection, of
// the newest.
var errNewest = errors.New("the server has no session of an older revision for this caller")

// hasBothEras reports whether a modern server over HTTP also speaks the older revisions, of which a session costs
// some servers less for each call. Servers that run tasks are spoken to in the newest revision alone, because
// the tasks of the two eras differ.
func (u *upstream) hasBothEras() bool {
	if u.remote != URL || !u.conn.IsModern() {
		return false
	}
	extensions, _ := rawjson.Get(u.capabilities["extensions"], "io.modelcontextprotocol/tasks")
	versions, _ := rawjson.Get(u.conn.Info(), "supportedVersions")
	for v := range rawjson.Elements(versions) {
		if rawjson.Equal(v, client.LatestLegacy) {
			return extensions == nil
		}
	}
	return false
}

// ownerOf returns whose instance a caller uses: its own, because an instance may hold a login.
func ownerOf(c *tool.Caller) string { return c.Own() }

// capabilities returns abilities as a client declares them.
func capabilities(can tool.Abilities, modern bool) json.RawMessage {
	all := []byte(`{}`)
	set := func(name string, value []byte) {
		all = rawjson.Splice(all, rawjson.Edit{Key: name, Value: value})
	}
	if can&(tool.CanElicit|tool.CanElicitURL) != 0 {
		modes := []byte(`{}`)
		if can&tool.CanElicit != 0 {
			modes = rawjson.Splice(modes, rawjson.Edit{Key: "form", Value: []byte(`{}`)})
		}
		if can&tool.CanElicitURL != 0 {
			modes = rawjson.Splice(modes, rawjson.Edit{Key: "url", Value: []byte(`{}`)})
		}
		set("elicitation", modes)
	}
	switch {
	case can&tool.CanSampleTools != 0:
		set("sampling", []byte(`{"tools":{}}`))
	case can&tool.CanSample != 0:
		set("sampling", []byte(`{}`))
	}
	switch {
	case can&tool.CanListRoots == 0:
	case modern:
		set("roots", []byte(`{}`))
	default:
		set("roots", []byte(`{"listChanged":true}`))
	}
	return all
}

// acquireInstance returns an instance for a key, with its server running. The call is
// counted on it until release.
func (p *managedPackage) acquireInstance(
	ctx context.Context, key instanceKey, from *Peer, c *openCall,
) (i *instance, u *upstream, release func(), err error) {
	i = p.shared
	if key != (instanceKey{}) {
		if i, err = p.joinInstance(ctx, key, from, c); err != nil {
			return nil, nil, nil, err
		}
	}
	if u, err = i.ready(ctx); err != nil {
		i.leave(c)
		return nil, nil, nil, err
	}
	return i, u, func() {
		u.releaseUpstream()
		i.leave(c)
	}, nil
}

// joinInstance counts a call on an instance with a key. If the server has asked during
// calls before, without naming the call, an instance runs one call at a time, so that it
// is known which call asks. A call that waits for an answer of its client delays no
// other: they get another instance.
func (p *managedPackage) joinInstance(
	ctx context.Context, key instanceKey, from *Peer, c *openCall,
) (*instance, error) {
	patience := time.NewTimer(queuePatience)
	defer patience.Stop()
	impatient := false
	for {
		p.mu.Lock()
		i, err := p.pickInstance(key, from, impatient)
		if i != nil {
			i.calls[c] = from.connection()
			if i.key.task != "" {
				i.staged = from.Staged
			}
			p.mu.Unlock()
			return i, nil
		}
		changed := p.changed
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-patience.C:
			impatient = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// pickInstance returns the instance for the next call of a key, and makes it if need be.
// It returns nil if the call has to wait; p.mu is held.
func (p *managedPackage) pickInstance(key instanceKey, from *Peer, impatient bool) (*instance, error) {
	most := maxInstanceCalls
	if p.serial {
		most = 1
	}
	all, busy := p.pool[key], false
	for _, i := range all {
		if len(i.calls) < most {
			return i, nil
		}
		busy = busy || !i.allParked()
	}
	if len(all) >= maxKeyInstances || busy && !impatient {
		return nil, nil
	}
	p.retireOutdated(key, from)
	if i := p.adoptInstance(key, from); i != nil {
		return i, nil
	}
	held, err := p.claimInstance(from)
	if err != nil {
		if len(all) > 0 {
			return nil, nil // one of them will be free
		}
		if key.older {
			return nil, errNewest
		}
		return nil, &tool.Refusal{
			Code: tool.CodeBusy, Message: "package " + p.id + " cannot be started for this caller: " + err.Error() +
				"; nothing was run",
			Next: "Try again when other calls have ended.",
		}
	}
	i := &instance{pkg: p, key: key, held: held, calls: map[*openCall]string{}}
	p.pool[key] = append(all, i)
	return i, nil
}

// claimInstance counts one more instance of a caller. If there are too many, one that has
// nothing to do is stopped; p.mu is held.
func (p *managedPackage) claimInstance(from *Peer) (limit.Held, error) {
	held, err := p.manager.started.Acquire(from.Caller, 1)
	if err == nil {
		return held, nil
	}
	var idlest *instance
	for _, all := range p.pool {
		for _, i := range all {
			if len(i.calls) == 0 && i.starting == nil && (idlest == nil || i.lastUsed.Before(idlest.lastUsed)) {
				idlest = i
			}
		}
	}
	if idlest == nil || !p.retireInstance(idlest) {
		return held, err
	}
	return p.manager.started.Acquire(from.Caller, 1)
}

// adoptInstance gives an idle instance the present roots of its caller, if no other
// connection has used it, and tells its server. It returns nil if there is none; p.mu is
// held.
func (p *managedPackage) adoptInstance(key instanceKey, from *Peer) *instance {
	if key.roots == "" || from.connection() == "" {
		return nil
	}
	for old, all := range p.pool {
		same := old
		same.roots = key.roots
		if same != key || old == key {
			continue
		}
		for _, i := range all {
			if len(i.calls) > 0 || i.running == nil || i.usedBy != from.connection() {
				continue
			}
			p.removeInstance(i)
			i.key = key
			p.pool[key] = append(p.pool[key], i)
			conn := i.running.conn
			p.manager.goWork(func(ctx context.Context) {
				ctx, cancel := context.WithTimeout(ctx, writeTimeout)
				defer cancel()
				// a server that does not read is ended elsewhere
				conn.Notify(ctx, "notifications/roots/list_changed", nil)
			})
			return i
		}
	}
	return nil
}

// retireOutdated stops the idle instances of a caller that have the folders which it announced before; p.mu is held.
func (p *managedPackage) retireOutdated(key instanceKey, from *Peer) {
	if key.folders == "" {
		return
	}
	for old, all := range p.pool {
		same := old
		same.roots, same.folders = key.roots, key.folders
		if same != key || old.folders == key.folders {
			continue
		}
		for _, i := range slices.Clone(all) {
			if i.usedBy == from.connection() {
				p.retireInstance(i)
			}
		}
	}
}

// removeInstance takes an instance out of the pool; p.mu is held.
func (p *managedPackage) removeInstance(i *instance) {
	left := slices.DeleteFunc(slices.Clone(p.pool[i.key]), func(o *instance) bool { return o == i })
	if p.pool[i.key] = left; len(left) == 0 {
		delete(p.pool, i.key)
	}
}

// retireInstance takes an instance that has no calls out of the pool and stops its server.
// It reports whether it did; p.mu is held.
func (p *managedPackage) retireInstance(i *instance) bool {
	if len(i.calls) > 0 || i.starting != nil {
		return false
	}
	u := i.running
	if u == nil {
		p.removeInstance(i)
		i.held.Release()
		return true
	}
	leave, err := p.manager.addWork()
	if err != nil {
		return false
	}
	i.running = nil
	p.removeInstance(i)
	i.held.Release()
	go func() {
		defer leave()
		u.stopProcess(stopGrace)
	}()
	return true
}

// leave ends the counting of a call on the instance.
func (i *instance) leave(c *openCall) {
	p := i.pkg
	p.mu.Lock()
	defer p.mu.Unlock()
	if by, there := i.calls[c]; there {
		delete(i.calls, c)
		if i.lastUsed = time.Now(); i.usedBy == "" {
			i.usedBy = by
		} else if i.usedBy != by {
			i.usedBy = "several connections"
		}
		p.signalChange()
	}
}

// signalChange wakes the calls and questions that wait for a change of the instances; p.mu
// is held.
func (p *managedPackage) signalChange() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// allParked reports whether every call of the instance waits for its client; i.pkg.mu is
// held.
func (i *instance) allParked() bool {
	for c := range i.calls {
		if !c.isWaiting() {
			return false
		}
	}
	return true
}

// connOptions describe this host to the server of the instance.
func (i *instance) connOptions() client.ConnOptions {
	o := client.ConnOptions{Name: i.pkg.manager.opts.Name, Version: i.pkg.manager.opts.Version}
	if i.key.can != 0 {
		o.Capabilities, o.Answer = capabilities(i.key.can, false), i.answer
	}
	return o
}

// answer answers what the server asks outside the stream of a request.
func (i *instance) answer(
	ctx context.Context, method string, params json.RawMessage,
) (json.RawMessage, *client.RPCError) {
	if roots := i.knownRoots(); method == "roots/list" && roots != "" {
		return json.RawMessage(roots), nil
	}
	c, err := i.askingCall(ctx, method)
	if err != nil {
		return nil, &client.RPCError{Code: -32000, Message: err.Error()}
	}
	return c.askCaller(ctx, method, params)
}

func (i *instance) knownRoots() string {
	i.pkg.mu.Lock()
	defer i.pkg.mu.Unlock()
	return i.key.roots
}

// askingCall returns the call that a question belongs to, which is the only one that is
// open. If there are several, it waits until the others have ended, because the one that
// asks cannot; if there is none, it waits for the next. It never guesses.
func (i *instance) askingCall(ctx context.Context, method string) (*openCall, error) {
	p := i.pkg
	late := time.NewTimer(attributionWait)
	defer late.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	i.unattributed++
	defer func() { i.unattributed-- }()
	for {
		if len(i.calls) == 1 {
			for c := range i.calls {
				p.serial = p.serial || method != "roots/list"
				return c, nil
			}
		}
		if len(i.calls) > 1 {
			p.serial = p.serial || method != "roots/list" // the next callers' roots are known before
			if i.unattributed >= len(i.calls) {
				// Each of them could have asked this, so it fails, and its call with it. What is left then is known.
				p.signalChange()
				return nil, errors.New("it is not known which of the calls asks; they run one at a time from now on")
			}
		}
		changed := p.changed
		p.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-late.C:
			err = errors.New("it is not known which call asks")
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// poolInstances returns the instances besides the shared one; p.mu is held.
func (p *managedPackage) poolInstances() (all []*instance) {
	for _, some := range p.pool {
		all = append(all, some...)
	}
	return all
}

// stopIfIdle stops the instances that have had nothing to do for a while.
func (p *managedPackage) stopIfIdle() {
	p.shared.stopIfIdle()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.poolInstances() {
		switch {
		case i.running != nil && i.running.idle() >= p.manager.opts.Idle:
			p.retireInstance(i)
		case i.running == nil && !time.Now().Before(i.next):
			p.retireInstance(i) // it exited, or did not start
		}
	}
}

// stopServers stops every instance, or cancels its start, and waits for its exit.
func (p *managedPackage) stopServers() error {
	p.mu.Lock()
	all := append(p.poolInstances(), p.shared)
	p.mu.Unlock()
	errs := make(chan error, len(all))
	for _, i := range all {
		go func() { errs <- i.stopInstance() }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range all {
		if i != p.shared {
			p.retireInstance(i)
		}
	}
	return err
}

// EndSessions stops the instances that served one session alone, and forgets what is known
// of it. ended reports whether a session has ended, by tool.Caller.Session or Connection.
func (h *Manager) EndSessions(ended func(session string) bool) {
	h.roots.mu.Lock()
	maps.DeleteFunc(h.roots.of, func(session, _ string) bool { return ended(session) })
	h.roots.mu.Unlock()
	h.visits.dropVisits(ended)
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		all := slices.DeleteFunc(p.poolInstances(), func(i *instance) bool {
			return i.key.session == "" || !ended(i.key.session) || p.retireInstance(i)
		})
		p.mu.Unlock()
		for _, i := range all {
			h.goWork(func(context.Context) {
				i.stopInstance()
				p.mu.Lock()
				defer p.mu.Unlock()
				p.retireInstance(i)
			})
		}
	}
}

// RootsChanged forgets the roots of a session, so that its next call asks for them and the
// servers that know them are told. session is tool.Caller.Session or Connection.
func (h *Manager) RootsChanged(session string) {
	h.roots.mu.Lock()
	defer h.roots.mu.Unlock()
	delete(h.roots.of, session)
}

// goWork runs a function that Close waits for, if the host is not stopping. Its ctx ends
// with the manager.
func (h *Manager) goWork(run func(context.Context)) {
	leave, err := h.addWork()
	if err != nil {
		return
	}
	go func() {
		defer leave()
		run(h.ctx)
	}()
}
