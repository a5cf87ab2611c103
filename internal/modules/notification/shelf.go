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

// Limits of what is kept.
const (
	most        = 1000 // notifications; the oldest go first
	mostCode    = 100  // bytes
	mostTitle   = 200
	mostMessage = 4 << 10
	mostData    = 16 << 10
)

// Note is a notification.
type Note struct {
	ID        int64     `json:"id"` // grows
	CreatedAt time.Time `json:"createdAt"`
	Seen      bool      `json:"seen,omitempty"`
	notify.News
}

// Kept is the value of the mount in which notifications lie.
type Kept struct {
	Last  int64           `json:"last"`  // the id that was given last
	Notes map[string]Note `json:"notes"` // by id
}

func key(id int64) string { return strconv.FormatInt(id, 10) }

// drop takes one away and says how many that were.
func (k *Kept) drop(id int64) int {
	if _, there := k.Notes[key(id)]; !there {
		return 0
	}
	delete(k.Notes, key(id))
	return 1
}

func (k *Kept) mark(id int64, seen bool) int {
	n := k.Notes[key(id)]
	if n.Seen == seen {
		return 0
	}
	n.Seen = seen
	k.Notes[key(id)] = n
	return 1
}

func (k *Kept) told(once string) bool {
	for _, n := range k.Notes {
		if once != "" && n.Once == once {
			return true
		}
	}
	return false
}

func (k *Kept) unread() (n int) {
	for _, note := range k.Notes {
		if !note.Seen {
			n++
		}
	}
	return n
}

// A Shelf holds notifications, in one mount of a state tree, of which it is the
// writer. Safe for concurrent use.
type Shelf struct {
	mount  *state.Mount[Kept]
	unread func(n int)
}

// NewShelf makes a shelf on a mount. unread is told how many are not marked as
// seen whenever the shelf has changed something, before the change returns; it
// may be nil.
func NewShelf(m *state.Mount[Kept], unread func(n int)) *Shelf {
	if unread == nil {
		unread = func(int) {}
	}
	return &Shelf{m, unread}
}

// emptyShelf is one in memory.
func emptyShelf(ctx context.Context) (*Shelf, error) {
	m, err := state.Attach[Kept](ctx, state.New(state.Options{}), "/private/notifications", state.Live)
	return NewShelf(m, nil), err
}

// Add keeps what somebody has to tell. The Note has no ID when that was told
// already. The error is about the news, or that of the state tree.
func (s *Shelf) Add(ctx context.Context, news notify.News) (Note, error) {
	news, err := checked(news)
	if err != nil {
		return Note{}, err
	}
	var made Note
	_, err = s.change(ctx, func(k *Kept) error {
		made = Note{}
		if k.told(news.Once) {
			return nil
		}
		if k.Notes == nil {
			k.Notes = map[string]Note{}
		}
		k.Last++
		made = Note{ID: k.Last, CreatedAt: time.Now().UTC(), News: news}
		k.Notes[key(made.ID)] = made
		if over := len(k.Notes) - most; over > 0 {
			for _, old := range newestFirst(k.Notes)[most:] {
				k.drop(old.ID)
			}
		}
		return nil
	})
	return made, err
}

// checked brings news into the form in which they are kept.
func checked(n notify.News) (notify.News, error) {
	if n.Level == "" {
		n.Level = notify.Info
	}
	if !slices.Contains([]notify.Level{notify.Success, notify.Info, notify.Warning, notify.Error}, n.Level) {
		return n, fmt.Errorf("a notification has no level %q", n.Level)
	}
	if n.Code == "" {
		n.Code = "news"
	}
	n.PackageID, n.Code, n.Once = cut(n.PackageID, mostCode), cut(n.Code, mostCode), cut(n.Once, mostTitle)
	n.Title, n.Message = cut(n.Title, mostTitle), cut(n.Message, mostMessage)
	if n.Title == "" {
		return n, errors.New("a notification has no title")
	}
	if len(n.Data) > mostData || !json.Valid(n.Data) {
		n.Data = nil
	}
	return n, nil
}

func cut(s string, most int) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
	if len(s) <= most {
		return s
	}
	return displaytext.Cut(s, most-len("..."), "...")
}

// change changes what is kept and tells how many are unread then.
func (s *Shelf) change(ctx context.Context, f func(*Kept) error) (unread int, err error) {
	if _, err := s.mount.Update(ctx, state.Any, f); err != nil {
		return 0, err
	}
	if unread, err = s.Unread(); err == nil {
		s.unread(unread)
	}
	return unread, err
}

// Unread is how many are not marked as seen.
func (s *Shelf) Unread() (int, error) {
	k, _, err := s.mount.Get()
	return k.unread(), err
}

// all is what there is, newest first.
func (s *Shelf) all() (all []Note, unread int, err error) {
	k, _, err := s.mount.Get()
	return newestFirst(k.Notes), k.unread(), err
}

// Since are the notifications after one, oldest first.
func (s *Shelf) Since(id int64) ([]Note, error) {
	all, _, err := s.all()
	all = slices.DeleteFunc(all, func(n Note) bool { return n.ID <= id })
	slices.Reverse(all)
	return all, err
}

// Newest is the id that was given last; 0 when there was none.
func (s *Shelf) Newest() (int64, error) {
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
