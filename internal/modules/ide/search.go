package ide

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"gatehouse/internal/files/index"
)

// Chats is the name of the collection of an owner's chats.
const Chats = "chats"

const (
	mostIndexed = 2000        // messages of a chat, the latest
	indexAfter  = time.Second // so that quick turns are one change of the collection
	indexWait   = 30 * time.Second
)

// indexLater brings a chat in the collection up to date, on a goroutine of the module.
func (m *bridge) indexLater(s session) {
	if m.cfg.Texts == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.toIndex[s.ID] = s
	if m.indexing {
		return
	}
	m.indexing = true
	m.wg.Go(m.indexAll)
}

// indexAll works until no chat waits. It goes on while the module closes, because the messages are stored already.
func (m *bridge) indexAll() {
	for {
		select {
		case <-time.After(indexAfter):
		case <-m.ctx.Done():
		}
		m.mu.Lock()
		var next session
		for _, next = range m.toIndex {
			break
		}
		delete(m.toIndex, next.ID)
		if next.ID == "" {
			m.indexing = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), indexWait)
		err := m.index(ctx, next)
		for errors.Is(err, index.ErrBusy) && ctx.Err() == nil { // the owner ingests files into the same collection
			time.Sleep(100 * time.Millisecond)
			err = m.index(ctx, next)
		}
		cancel()
		if err != nil {
			m.log.Error("a chat cannot be searched", "session", next.ID, "error", err)
		}
	}
}

// index makes a chat a text of the collection: a heading for each message of the user, and the answer below it.
func (m *bridge) index(ctx context.Context, s session) error {
	all, err := m.store.history(ctx, s.ID, "", math.MaxInt64, mostIndexed)
	if err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n", s.Name)
	for _, x := range all {
		switch x.Role {
		case "user":
			fmt.Fprintf(&text, "\n## %s\n\n%s\n", x.Timestamp.Format(time.DateTime), x.Content)
		case "assistant":
			fmt.Fprintf(&text, "\n%s: %s\n", s.Agent, x.Content)
		}
	}
	b := []byte(text.String())
	_, _, err = m.cfg.Texts.Ingest(ctx, index.Ingest{
		Owner: s.Owner, Name: Chats, Partial: true,
		Items: []index.Item{{Path: index.ChatPrefix + s.ID, Size: int64(len(b)), Modified: time.Now()}},
		Read: func(context.Context, index.Item) (index.Document, error) {
			return index.Document{Text: b, Language: "markdown", Hash: sha256.Sum256(b)}, nil
		},
	})
	return err
}
