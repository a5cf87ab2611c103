package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// A Handler answers a request of another node. Its error is sent as text.
type Handler func(ctx context.Context, from string, data []byte) ([]byte, error)

// MaxMessage bounds a request, an answer, an event and a record.
const MaxMessage = maxPayload - 64<<10

// Headers of messages between nodes.
const (
	headerFrom  = "From"
	headerError = "Error"
	headerLeft  = "Left" // until the deadline
)

// maxRequests bounds the requests of one topic that run at once on a node.
const maxRequests = 4096

func (n *Node) subject(parts ...string) string {
	return "gatehouse." + n.opts.Name + "." + strings.Join(parts, ".")
}

// Handle answers the requests for a topic that are sent to this node until stop is called, which waits for those
// that run.
func (n *Node) Handle(topic string, h Handler) (stop func(), err error) {
	return n.handle(n.subject("node", n.id, topic), "", h)
}

// HandleAny answers the requests for a topic that are sent to any node.
func (n *Node) HandleAny(topic string, h Handler) (stop func(), err error) {
	return n.handle(n.subject("any", topic), "any", h)
}

func (n *Node) handle(subject, queue string, h Handler) (stop func(), err error) {
	run, cancel := context.WithCancelCause(context.Background())
	places := make(chan struct{}, maxRequests)
	take := func(m *nats.Msg) {
		select {
		case places <- struct{}{}:
		default:
			n.sendReply(m, nil, errors.New("this node answers too many requests; try again later"))
			return
		}
		go func() {
			defer func() { <-places }()
			ctx := run
			if left, err := time.ParseDuration(m.Header.Get(headerLeft)); err == nil {
				var end context.CancelFunc
				ctx, end = context.WithTimeout(ctx, left)
				defer end()
			}
			data, err := h(ctx, m.Header.Get(headerFrom), m.Data)
			n.sendReply(m, data, err)
		}()
	}
	var sub *nats.Subscription
	if queue == "" {
		sub, err = n.conn.Subscribe(subject, take)
	} else {
		sub, err = n.conn.QueueSubscribe(subject, queue, take)
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	if err := n.conn.Flush(); err != nil {
		cancel(err)
		return nil, err
	}
	return func() {
		sub.Unsubscribe()
		cancel(errors.New("the node stops"))
		for range maxRequests { // each place is free once its request has been answered
			places <- struct{}{}
		}
	}, nil
}

func (n *Node) sendReply(m *nats.Msg, data []byte, err error) {
	if m.Reply == "" {
		return
	}
	reply := &nats.Msg{Subject: m.Reply, Data: data}
	if err == nil && len(data) > MaxMessage {
		err = fmt.Errorf("the answer has %d bytes, more than %d", len(data), MaxMessage)
	}
	if err != nil {
		reply.Data, reply.Header = nil, nats.Header{headerError: {err.Error()}}
	}
	n.conn.PublishMsg(reply)
}

// RemoteError is the error of a handler on another node, whose id is not known after RequestAny.
type RemoteError struct{ Node, Text string }

func (e *RemoteError) Error() string {
	if e.Node == "" {
		return e.Text
	}
	return "node " + e.Node + ": " + e.Text
}

// Request sends a request to one node and waits for its answer. The error wraps ErrNotRun if the node did not get
// it, ErrMayHaveRun if it may have; a *RemoteError is the handler's. It returns as soon as the node is dead.
func (n *Node) Request(ctx context.Context, node, topic string, data []byte) ([]byte, error) {
	if n.peers == nil { // a visitor, which hears no nodes
		return n.requestNode(ctx, node, n.subject("node", node, topic), data)
	}
	ctx, cancel, alive := n.peers.whileAlive(ctx, node)
	defer cancel()
	if !alive {
		return nil, fmt.Errorf("node %s is not there: %w", node, ErrNotRun)
	}
	return n.requestNode(ctx, node, n.subject("node", node, topic), data)
}

// RequestAny is Request to one of the nodes that handle the topic.
func (n *Node) RequestAny(ctx context.Context, topic string, data []byte) ([]byte, error) {
	return n.requestNode(ctx, "", n.subject("any", topic), data)
}

func (n *Node) requestNode(ctx context.Context, node, subject string, data []byte) ([]byte, error) {
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("the request has %d bytes, more than %d: %w", len(data), MaxMessage, ErrNotRun)
	}
	m := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{headerFrom: {n.id}}}
	if end, ok := ctx.Deadline(); ok {
		m.Header[headerLeft] = []string{time.Until(end).String()}
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTime)
		defer cancel()
	}
	reply, err := n.conn.RequestMsgWithContext(ctx, m)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("node %s: %w: %w", cmp.Or(node, "of the cluster"), sendError(err), err)
	}
	if text := reply.Header.Get(headerError); text != "" {
		return nil, &RemoteError{Node: node, Text: text}
	}
	return reply.Data, nil
}

// sendError tells whether a message that failed with err can have arrived.
func sendError(err error) error {
	if notSent(err) {
		return ErrNotRun
	}
	return ErrMayHaveRun
}

func notSent(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrHeadersNotSupported)
}

// Publish sends an event to the nodes that follow its topic, this one included. It arrives at most once.
func (n *Node) Publish(topic string, data []byte) error {
	if len(data) > MaxMessage {
		return fmt.Errorf("the event has %d bytes, more than %d", len(data), MaxMessage)
	}
	return n.conn.PublishMsg(&nats.Msg{
		Subject: n.subject("event", topic), Data: data, Header: nats.Header{headerFrom: {n.id}},
	})
}

// Follow calls f with the events of a topic, in the order of each sender, until stop is called. In a topic "*"
// matches one dotted part and a final ">" all remaining parts. A follower that is too slow loses events, which
// lost counts.
func (n *Node) Follow(topic string, f func(from, topic string, data []byte)) (stop func(), lost func() int, err error) {
	prefix := n.subject("event", "")
	sub, err := n.conn.Subscribe(n.subject("event", topic), func(m *nats.Msg) {
		f(m.Header.Get(headerFrom), strings.TrimPrefix(m.Subject, prefix), m.Data)
	})
	if err != nil {
		return nil, nil, err
	}
	if err := n.conn.Flush(); err != nil {
		return nil, nil, err
	}
	return func() { sub.Unsubscribe() }, func() int { c, _ := sub.Dropped(); return c }, nil
}
