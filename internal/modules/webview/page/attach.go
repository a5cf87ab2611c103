package page

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

const mostVersion = 64 << 10 // bytes of the answer of a debug address

func readDebugAddress(r *http.Request) (string, error) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		return "", fmt.Errorf("no browser answers at %s: %w", r.URL, err)
	}
	defer resp.Body.Close()
	var version struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, mostVersion)).Decode(&version); err != nil ||
		version.URL == "" {
		return "", fmt.Errorf("%s is not the debug address of a browser: expected JSON with webSocketDebuggerUrl",
			r.URL)
	}
	return version.URL, nil
}
