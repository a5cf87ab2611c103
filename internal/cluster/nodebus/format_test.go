package nodebus

import (
	"net/http/httptest"
	"strings"
	"testing"

	"gatehouse/internal/dispatch/bus"
)

// TestACallOfANewerVersion sends a call of a newer format, which is refused before it is read.
func TestACallOfANewerVersion(t *testing.T) {
	r := httptest.NewRequest("POST", "/call", strings.NewReader(`{"Caller":{}}`))
	r.Header.Set(headerFormat, "1000")
	w := httptest.NewRecorder()
	Handler(bus.New()).ServeHTTP(w, r)
	if w.Code != 501 || !strings.Contains(w.Body.String(), "newer than this version") {
		t.Errorf("got %d, %s", w.Code, w.Body)
	}
}
