package notification

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/state"
)

// Limits of the stored notifications.
const (
	maxNotes   = 1000 // notifications; the oldest go first
	maxCode    = 100  // bytes
	maxTitle   = 200
	maxMessage = 4 << 10
	maxData    = 16 << 10
)

// Note is a stored notification.
type Note struct {
	ID        int64     `json:"id"` // increasing
	CreatedAt time.Time `json:"createdAt"`
	Seen      bool      `json:"seen,omitempty"`
	notify.Notification
}

// Stored is the value of the mount that has the notifications.
type Stored struct {
	Last  int64           `json:"last"`  // the last id that was assigned
	Notes map[string]Note `json:"notes"` // by id
}

func key(id int64) string { return strconv.FormatInt(id, 10) }

// removeByID removes a notification and returns how many it removed, 0 or 1.
func (k *Stored) removeByID(id int64) int {
	if _, there := k.Notes[key(id)]; !there {
		return 0
	}
	delete(k.Notes, key(id))
	return 1
}

func (k *Stored) mark(id int64, seen bool) int {
	n := k.Notes[key(id)]
	if n.Seen == seen {
		return 0
	}
	n.Seen = seen
	k.Notes[key(id)] = n
	return 1
}

func (k *Stored) hasOnce(once string) bool {
	for _, n := range k.Notes {
		if once != "" && n.Once == once {
			return true
		}
	}
	return false
}

func (k *Stored) unread() (n int) {
	for _, note := range k.Notes {
		if !note.Seen {
			n++
		}
	}
	return n
}

// A Store has the notifications in one mount of a state tree, of which it is the
// only writer. It is safe for concurrent use.
type Store struct {
	mount  *state.Mount[Stored]
	unread func(n int)
}

// NewStore returns a store on a mount. After every change, and before the change
// returns, the store calls unread with the number of unseen notifications;
// unread may be nil.
func NewStore(m *state.Mount[Stored], unread func(n int)) *Store {
	if unread == nil {
		unread = func(int) {}
	}
	return &Store{m, unread}
}

// newMemoryStore returns an empty store in memory.
func newMemoryStore(ctx context.Context) (*Store, error) {
	m, err := state.Attach[Stored](ctx, state.New(state.Options{}), "/private/notifications", state.Live)
	return NewStore(m, nil), err
}

// Add stores a notification. If one with the same Once is stored already, Add
// returns a Note without ID. The error is about an invalid notification, or from
// the state tree.
func (s *Store) Add(ctx context.Context, news notify.Notification) (Note, error) {
	news, err := normalize(news)
	if err != nil {
		return Note{}, err
	}
	var made Note
	_, err = s.changeStored(ctx, func(k *Stored) error {
		made = Note{}
		if k.hasOnce(news.Once) {
			return nil
		}
		if k.Notes == nil {
			k.Notes = map[string]Note{}
		}
		k.Last++
		made = Note{ID: k.Last, CreatedAt: time.Now().UTC(), Notification: news}
		k.Notes[key(made.ID)] = made
		if over := len(k.Notes) - maxNotes; over > 0 {
			for _, old := range newestFirst(k.Notes)[maxNotes:] {
				k.removeByID(old.ID)
			}
		}
		return nil
	})
	return made, err
}

// normalize checks a notification and truncates what is too long.
func normalize(n notify.Notification) (notify.Notification, error) {
	if n.Level == "" {
		n.Level = notify.Info
	}
	if !slices.Contains([]notify.Level{notify.Success, notify.Info, notify.Warning, notify.Error}, n.Level) {
		return n, fmt.Errorf("unknown level %q of a notification", n.Level)
	}
	if n.Code == "" {
		n.Code = "news"
	}
	n.PackageID, n.Code, n.Once = truncate(n.PackageID, maxCode), truncate(n.Code, maxCode), truncate(n.Once, maxTitle)
	n.Title, n.Message = truncate(n.Title, maxTitle), truncate(n.Message, maxMessage)
	if n.Title == "" {
		return n, errors.New("a notification has no title")
	}
	if len(n.Data) > maxData || !json.Valid(n.Data) {
		n.Data = nil
	}
	return n, nil
}

func truncate(s string, most int) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
	if len(s) <= most {
		return s
	}
	return displaytext.Cut(s, most-len("..."), "...")
}

// changeStored applies f to the stored value and returns the number of unseen
// notifications.
func (s *Store) changeStored(ctx context.Context, f func(*Stored) error) (unread int, err error) {
	if _, err := s.mount.Update(ctx, state.Any, f); err != nil {
		return 0, err
	}
	if unread, err = s.Unread(); err == nil {
		s.unread(unread)
	}
	return unread, err
}

// Unread returns the number of unseen notifications.
func (s *Store) Unread() (int, error) {
	k, _, err := s.mount.Get()
	return k.unread(), err
}

// all returns the notifications, newest first.
func (s *Store) all() (all []Note, unread int, err error) {
	k, _, err := s.mount.Get()
	return newestFirst(k.Notes), k.unread(), err
}

// Since returns the notifications after id, oldest first.
func (s *Store) Since(id int64) ([]Note, error) {
	all, _, err := s.all()
	all = slices.DeleteFunc(all, func(n Note) bool { return n.ID <= id })
	slices.Reverse(all)
	return all, err
}

// Newest returns the last assigned id, or 0.
func (s *Store) Newest() (int64, error) {
	k, _, err := s.mount.Get()
	return k.Last, err
}

func newestFirst(notes map[string]Note) []Note {
	all := make([]Note, 0, len(notes))
	for _, n := range notes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b Note) int { return int(b.ID - a.ID) })
	return all
}
