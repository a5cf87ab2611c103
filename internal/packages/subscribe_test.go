package packages

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Many updates become few notifications, of which the last carries the newest update.
func TestUpdatesAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s subscriptions
		s.init(&managedPackage{})
		var mu sync.Mutex
		var got []string
		changed := func(meta json.RawMessage) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(meta))
		}
		one := &subscription{watchers: map[*func(json.RawMessage)]struct{}{&changed: {}}, settled: make(chan struct{})}
		s.all["a://b"] = one
		for i := range 1000 {
			s.updated("a://b/part", fmt.Appendf(nil, `{"n":%d}`, i))
			time.Sleep(100 * time.Microsecond)
		}
		s.updated("a://bc", json.RawMessage(`{"of":"another"}`))
		time.Sleep(time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if most := int(100*time.Millisecond/updatePause) + 2; len(got) > most || len(got) < 3 {
			t.Errorf("%d notifications, want at most %d", len(got), most)
		}
		if got[0] != `{"n":0}` || got[len(got)-1] != `{"n":999}` {
			t.Errorf("the first and last are %s and %s", got[0], got[len(got)-1])
		}
	})
}
