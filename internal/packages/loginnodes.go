package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/mcp/client/oauth"
)

// A login that was begun on one node of a cluster can be finished on any: it is a record of the cluster, encrypted,
// bound to its principal, its package and its state. The node that finishes it removes the record by compare-and-set,
// so that it is finished once.

const loginPurpose = "login at a package"

// sharedLogin is what another node needs of a login.
type sharedLogin struct {
	Package string `json:"package"`
	By      string `json:"by"`
	Of      string `json:"of,omitempty"`
	Sealed  string `json:"sealed"`
}

func loginBinding(state, id, principal string) []byte {
	return fmt.Appendf(nil, "%q %q %q", state, id, principal)
}

// shareLogin gives a login that was begun here to the cluster.
func (h *Manager) shareLogin(ctx context.Context, b *beganLogin) error {
	c := h.opts.Cluster
	if c == nil {
		return nil
	}
	plain, err := json.Marshal(b.login)
	if err != nil {
		return err
	}
	state := b.login.State
	raw, err := json.Marshal(sharedLogin{
		Package: b.id, By: b.principal, Of: b.of,
		Sealed: c.Seal(loginPurpose, loginBinding(state, b.id, b.principal), plain, b.expires),
	})
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, recordTimeout)
		defer cancel()
		_, err = c.Logins.Put(ctx, state, raw)
	}
	if err != nil {
		h.logins.drop(state)
		return fmt.Errorf("the login is not known to most nodes of the cluster: %w", err)
	}
	return nil
}

// loginOfNode returns a login that another node has begun; nil if there is none of this principal and package. A login
// ends with its record.
func (h *Manager) loginOfNode(ctx context.Context, state, id, principal string) (*beganLogin, error) {
	c := h.opts.Cluster
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	r, err := c.Logins.Get(ctx, state)
	if errors.Is(err, cluster.ErrNotFound) {
		return nil, nil
	}
	var shared sharedLogin
	if err == nil {
		err = json.Unmarshal(r.Value, &shared)
	}
	if err != nil {
		return nil, fmt.Errorf("the logins of the cluster cannot be read: %w", err)
	}
	if shared.Package != id || shared.By != principal {
		return nil, nil
	}
	plain, err := c.Open(loginPurpose, loginBinding(state, id, principal), shared.Sealed, time.Now())
	if err != nil {
		return nil, nil // it has expired
	}
	b := &beganLogin{
		id: id, principal: principal, of: shared.Of, login: &oauth.Login{}, expires: r.At.Add(LoginLife),
		done: make(chan struct{}),
	}
	if err := json.Unmarshal(plain, b.login); err != nil {
		return nil, err
	}
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	rec := p.rec
	p.mu.Unlock()
	if b.transport, err = p.transport(&rec, b.of); err != nil {
		return nil, err
	}
	return b, h.logins.addLogin(b)
}

// claimLogin makes this node the only one that finishes a login.
func (h *Manager) claimLogin(ctx context.Context, state string) error {
	c := h.opts.Cluster
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	r, err := c.Logins.Get(ctx, state)
	if err == nil {
		err = c.Logins.Delete(ctx, state, r.Revision)
	}
	if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrConflict) {
		return errors.New("it was finished on another node of the cluster, or has expired")
	}
	return err
}

// loginLook is how often a call that waits for a login looks whether another node has finished it.
const loginLook = time.Second

// watchLogin returns a channel that is closed when another node has finished a login. Without a cluster it is nil.
func (h *Manager) watchLogin(ctx context.Context, state string) (ended <-chan struct{}, stop func()) {
	c := h.opts.Cluster
	if c == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	h.goWork(func(context.Context) {
		for sleep(ctx, loginLook) == nil {
			if _, err := c.Logins.Get(ctx, state); errors.Is(err, cluster.ErrNotFound) {
				b := h.logins.findLogin(state)
				if b == nil { // this node has finished it, and says how
					return
				}
				h.logins.drop(state)
				close(gone)
				return
			}
		}
	})
	return gone, cancel
}
