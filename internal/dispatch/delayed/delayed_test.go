package delayed

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type listener struct {
	mu sync.Mutex
	strings.Builder
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(b)
}

func (l *listener) heard() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

func TestWhatIsShortIsNotPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l listener
		f := To(&l)
		f.Write([]byte("hello"))
		f.Close()
		time.Sleep(10 * soon)
		if l.heard() != "" {
			t.Errorf("heard %q", l.heard())
		}
	})
}

func TestWhatTakesLongIsPassedOnFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l listener
		f := To(&l)
		defer f.Close()
		f.Write([]byte("one "))
		time.Sleep(soon + 1)
		synctest.Wait()
		f.Write([]byte("two"))
		if l.heard() != "one two" {
			t.Errorf("heard %q", l.heard())
		}
	})
}

func TestWhatIsLongIsPassedOnAtOnce(t *testing.T) {
	var l listener
	f := To(&l)
	defer f.Close()
	f.Write([]byte("one "))
	f.Write([]byte(strings.Repeat("x", enough)))
	if got := l.heard(); len(got) != enough+4 || !strings.HasPrefix(got, "one x") {
		t.Errorf("heard %d bytes", len(got))
	}
}
