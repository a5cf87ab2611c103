package agentclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"gatehouse/internal/sandbox/agentprotocol"
)

// silence is the time from Still to Let, when nothing is on its way.
type silence struct {
	over chan struct{} // closed when it ends
}

// Still is Hold for a snapshot: the agent says nothing either until Let, so
// that the snapshot holds no part of a frame, and neither does the channel. The
// programs run on; whoever takes the snapshot stops them. On an error nothing
// is held.
func (l *Link) Still(ctx context.Context) error {
	l.mu.Lock()
	already := l.silent != nil
	l.mu.Unlock()
	if already {
		return nil
	}
	s := &silence{over: make(chan struct{})}
	a := &answer{want: agentprotocol.Ready, came: make(chan error, 2)}
	a.then = func() { // before the end of the channel can be read
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.err == nil {
			l.silent = s
		}
	}
	id, err := l.number(a, nil)
	if err != nil {
		return err
	}
	held := l.paused() != nil
	l.pace.hold()
	l.sending.Lock()
	err = l.write(agentprotocol.Still, id, nil)
	l.sending.Unlock()
	if err == nil {
		err = a.wait(ctx)
	}
	if err != nil && ctx.Err() != nil {
		// It may become still yet, and nobody would know.
		l.fail(errors.New("the agent did not become still in time"))
	}
	if err != nil && !held {
		l.pace.goOn()
	}
	return err
}

// Switch has the link go on through another channel after Still, when the one
// before ended, or will. Requests under way are not lost. The channel is the
// link's from here on.
func (l *Link) Switch(channel Channel) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent == nil || l.err != nil || len(l.switched) > 0 {
		channel.Close()
		return cmp.Or(l.err, errors.New("a link changes its channel once it is still, and not otherwise"))
	}
	old := l.channel
	l.channel = channel
	l.switched <- channel
	return old.Close()
}

// next is what is read after a channel has ended; nil when nothing is.
func (l *Link) next() Channel {
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

// endSilence reports whether there was one. The caller holds mu.
func (l *Link) endSilence() bool {
	s := l.silent
	if s == nil {
		return false
	}
	l.silent = nil
	close(s.over)
	return true
}

// Renew is the first call through the channel to an agent that was restored
// from a snapshot: it gets the time, randomness of its own, and lets go of what
// the old sandbox had under way. Programs run on with their output thrown away.
func (l *Link) Renew(ctx context.Context) error {
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
	return l.asked(ctx, agentprotocol.Renew, n.Body(), a)
}

var errRestored = errors.New("the sandbox was restored from a snapshot, and what was under way then is nobody's any more")
