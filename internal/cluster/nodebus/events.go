package nodebus

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"sync"

	"gatehouse/internal/dispatch/bus"
)

// Carrier sends messages to all nodes. *cluster.Node is one.
type Carrier interface {
	ID() string
	Publish(topic string, data []byte) error
	// Follow calls f with the messages of a topic, one at a time. lost counts those that it has missed.
	Follow(topic string, f func(from, topic string, data []byte)) (stop func(), lost func() int, err error)
}

// eventTopic is the topic of events.
const eventTopic = "bus"

// eventQueue is how many events of one pattern may wait to be sent.
const eventQueue = 4096

// CarryEvents publishes the events of other nodes on the local bus, and sends those of the local bus whose subjects match
// one of the patterns to the others, while run runs. It begins when CarryEvents returns.
func CarryEvents(local bus.Bus, c Carrier, patterns []string, log *slog.Logger) (run func(context.Context) error, err error) {
	var lost func() int
	var missed int // of lost; used by f alone
	ready := make(chan struct{})
	stop, lost, err := c.Follow(eventTopic, func(from, _ string, data []byte) {
		<-ready
		if from == c.ID() {
			return
		}
		var e bus.Event
		if err := json.Unmarshal(data, &e); err != nil {
			log.Error("an event of another node cannot be read", "node", from, "err", err)
			return
		}
		if n := lost(); n > missed {
			e.Lost, missed = e.Lost+n-missed, n
		}
		e.Node = from
		local.Publish(e)
	})
	if err != nil {
		return nil, err
	}
	close(ready)
	ctx, end := context.WithCancel(context.Background())
	var all []iter.Seq[bus.Event]
	for _, p := range patterns {
		all = append(all, local.Follow(ctx, p, eventQueue))
	}
	return func(until context.Context) error {
		defer stop()
		defer context.AfterFunc(until, end)()
		var sending sync.WaitGroup
		defer sending.Wait()
		for _, events := range all {
			sending.Go(func() {
				for e := range events {
					if err := sendEvent(c, e); err != nil {
						log.Debug("an event does not reach the other nodes", "subject", e.Subject, "err", err)
					}
				}
			})
		}
		return nil
	}, nil
}

func sendEvent(c Carrier, e bus.Event) error {
	raw, err := encode(e)
	if err != nil {
		return err
	}
	return c.Publish(eventTopic, raw)
}
