package agentclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"
)

// silence lasts from Quiesce to Continue, when no frame is in flight.
type silence struct {
	over chan struct{} // closed when it ends
}

// Quiesce is Suspend for a snapshot: the agent sends nothing either until Continue, so that neither the snapshot
// nor the channel contains part of a frame. The programs run on; the caller stops them. On an error nothing is
// paused.
func (l *Client) Quiesce(ctx context.Context) error {
	l.mu.Lock()
	already := l.silent != nil
	l.mu.Unlock()
	if already {
		return nil
	}
	s := &silence{over: make(chan struct{})}
	a := &answer{want: agentprotocol.Ready, came: make(chan error, 2)}
	a.then = func() { // called before the end of the channel can be read
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err == nil {
			l.silent = s
		}
	}
	id, err := l.assign(a, nil)
	if err != nil {
		return err
	}
	held := l.paused() != nil
	l.clock.pause()
	l.sending.Lock()
	err = l.writeFrame(agentprotocol.Quiesce, id, nil)
	l.sending.Unlock()
	if err == nil {
		err = a.wait(ctx)
	}
	if err != nil && ctx.Err() != nil {
		// The agent may still become quiesced, and the client would not notice.
		l.failWith(errors.New("the agent did not become quiet in time"))
	}
	if err != nil && !held {
		l.clock.resume()
	}
	return err
}

// Switch replaces the channel of a quiesced client. The old channel may have ended or is closed. Requests in
// progress continue. The client owns the channel from then on.
func (l *Client) Switch(channel Channel) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent == nil || l.err != nil || len(l.switched) > 0 {
		channel.Close()
		return cmp.Or(l.err, errors.New("the channel can be replaced once, while the client is quiesced"))
	}
	old := l.channel
	l.channel = channel
	l.switched <- channel
	return old.Close()
}

// nextChannel returns the channel to read after one has ended; nil if there is none.
func (l *Client) nextChannel() Channel {
	l.mu.Lock()
	s := l.silent
	l.mu.Unlock()
	if s != nil {
		select {
		case channel := <-l.switched:
			return channel
		case <-s.over:
		}
	}
	select {
	case channel := <-l.switched:
		return channel
	default:
		return nil
	}
}

// endSilence reports whether the client was quiesced. The caller holds mu.
func (l *Client) endSilence() bool {
	s := l.silent
	if s == nil {
		return false
	}
	l.silent = nil
	close(s.over)
	return true
}

// Renew is the first call to an agent that was restored from a snapshot. It sets the agent's clock, gives it
// fresh randomness, and drops the requests of the old sandbox. Programs run on with their output discarded.
func (l *Client) Renew(ctx context.Context) error {
	entropy := make([]byte, 64)
	rand.Read(entropy)
	n := agentprotocol.Renewal{Epoch: rand.Text(), Clock: time.Now(), Entropy: string(entropy)}
	a := &answer{want: agentprotocol.Ready, body: n.Epoch, came: make(chan error, 2)}
	a.then = func() {
		l.mu.Lock()
		left := l.requests
		l.requests = map[uint32]receiver{}
		l.mu.Unlock()
		for _, r := range left {
			if r != a {
				r.broken(errRestored)
			}
		}
	}
	return l.askWith(ctx, agentprotocol.Renew, n.Body(), a)
}

var errRestored = errors.New("the sandbox was restored from a snapshot, which ended the calls in progress")
