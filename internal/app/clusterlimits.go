package app

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"gatehouse/internal/access/limit"
)

// Topics of what nodes tell each other about limits.
const (
	topicLend  = "limits.lend"
	topicTries = "limits.tries" // events: tries of passwords
)

// mostAsked bounds the keys of one request for loans, and of one answer.
const mostAsked = 256

// shareLimits makes the rates of this node those of all nodes together; see limit.Group. Without a cluster it does
// nothing.
func (a *App) shareLimits() error {
	c := a.nodes
	if c == nil {
		return nil
	}
	s := &limitShares{c: c, group: limit.NewGroup(c.ID())}
	s.countNodes()
	a.limits.Join(s.group)
	if _, err := c.Handle(topicLend, s.lend); err != nil {
		return err
	}
	a.addPart("limits of the cluster", func(ctx context.Context) error {
		var all sync.WaitGroup
		// Often, because while nodes differ about who is there they allow more together than they should.
		all.Go(func() { c.every(ctx, c.lease/10, s.countNodes) })
		all.Go(func() { c.every(ctx, limit.LoanTime/4, s.group.Recount) })
		all.Go(func() { s.borrow(ctx) })
		all.Wait()
		return nil
	})
	return nil
}

// limitShares lends and borrows parts of rates, and slots of contexts.
type limitShares struct {
	c     *clusterNodes
	group *limit.Group

	nodes, place int // which countNodes has set
}

// countNodes sets the share of this node: a node that is dead serves nothing, so that the others have its share.
func (s *limitShares) countNodes() {
	nodes, place := 1, 0
	for _, p := range s.c.Nodes()[1:] {
		if p.Alive && p.Member {
			if nodes++; p.ID < s.c.ID() {
				place++
			}
		}
	}
	if nodes != s.nodes || place != s.place {
		s.nodes, s.place = nodes, place
		s.group.SetHosts(nodes, place)
	}
}

func (s *limitShares) lend(_ context.Context, from string, raw []byte) ([]byte, error) {
	var wants []limit.Want
	if err := json.Unmarshal(raw, &wants); err != nil {
		return nil, err
	}
	loans := []limit.Loan{}
	for _, w := range wants[:min(len(wants), mostAsked)] {
		loans = append(loans, s.group.Lend(w, from))
	}
	return json.Marshal(loans)
}

// borrow asks the other nodes for what this one lacks, until ctx is done.
func (s *limitShares) borrow(ctx context.Context) {
	for {
		var wants []limit.Want
		select {
		case w := <-s.group.Wants():
			wants = append(wants, w)
		case <-ctx.Done():
			return
		}
		for more := true; more && len(wants) < mostAsked; {
			select {
			case w := <-s.group.Wants():
				wants = append(wants, w)
			default:
				more = false
			}
		}
		asked := time.Now()
		for i, l := range s.ask(ctx, wants, asked) {
			s.group.Borrow(wants[i], l, asked)
		}
	}
}

// ask returns what the other nodes lend together of rates, and borrows the slots that each lends.
func (s *limitShares) ask(ctx context.Context, wants []limit.Want, asked time.Time) []limit.Loan {
	ctx, cancel := context.WithTimeout(ctx, limit.LoanTime/2)
	defer cancel()
	sums := make([]limit.Loan, len(wants))
	question, err := json.Marshal(wants)
	if err != nil {
		return sums
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, p := range s.c.Nodes()[1:] {
		if !p.Alive || !p.Member {
			continue
		}
		asking.Go(func() {
			var loans []limit.Loan
			raw, err := s.c.Request(ctx, p.ID, topicLend, question)
			if err != nil || json.Unmarshal(raw, &loans) != nil || len(loans) != len(wants) {
				return // this node does without
			}
			mu.Lock()
			defer mu.Unlock()
			for i, l := range loans {
				s.group.BorrowSlots(wants[i], p.ID, l, asked)
				sums[i].Part, sums[i].Requests = sums[i].Part+l.Part, sums[i].Requests+l.Requests
			}
		})
	}
	asking.Wait()
	return sums
}

// try is a try of a password, which all nodes count.
type try struct {
	Kind string `json:"kind"`
	Key  []byte `json:"key"` // not always text
}

// shareTries makes the tries of passwords count on all nodes. A try that is not heard of counts on its node alone.
func (a *App) shareTries() error {
	if a.nodes == nil {
		return nil
	}
	stop, _, err := a.nodes.Follow(topicTries, func(from, _ string, raw []byte) {
		var t try
		if from != a.nodes.ID() && json.Unmarshal(raw, &t) == nil {
			a.who.CountTry(t.Kind, string(t.Key))
		}
	})
	if err != nil {
		return err
	}
	a.closing("tries of passwords", func(context.Context) error { stop(); return nil })
	return nil
}

// tellTry tells the other nodes of a try of a password; nil without a cluster.
func (c *clusterNodes) tellTry() func(kind, key string) {
	if c == nil {
		return nil
	}
	return func(kind, key string) {
		raw, err := json.Marshal(try{kind, []byte(key)})
		if err == nil {
			err = c.Publish(topicTries, raw)
		}
		if err != nil {
			c.log.Warn("other nodes do not count a try of a password", "err", err)
		}
	}
}
