package gatehouse_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"net/http"

	"gatehouse"
	"gatehouse/module"
	"gatehouse/tool"
)

// A host in a program of its own, behind any HTTP server.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("hello from a file\n"), 0o600); err != nil {
		log.Fatal(err)
	}

	s, err := gatehouse.New(gatehouse.WithWorkspaceRoot(dir))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Shutdown(context.Background())
	web := httptest.NewServer(s.Handler())
	defer web.Close()

	fmt.Print(call(web.URL+"/mcp", "file_read", `{"path":"a.txt"}`))
	// Output: hello from a file
}

// A tool is a Go function with typed arguments. Schema, checks and defaults
// follow from the types.
func ExampleWithModule() {
	type greeting struct {
		Name string `json:"name" doc:"whom to greet" min:"1"`
		Loud bool   `json:"loud,omitempty" doc:"shout"`
	}
	greet := tool.New(tool.Def{
		Name:        "greet",
		Description: "Greets a person by name.",
		Effects:     tool.Reads,
	}, func(_ context.Context, _ *tool.Call, in greeting) (tool.Result, error) {
		text := "Hello, " + in.Name + "."
		if in.Loud {
			text = strings.ToUpper(text)
		}
		return tool.Result{Content: []tool.Content{tool.Text(text)}}, nil
	})
	s, err := gatehouse.New(gatehouse.WithModules(), gatehouse.WithModule("greet", offering(greet)))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Shutdown(context.Background())
	web := httptest.NewServer(s.Handler())
	defer web.Close()

	fmt.Println(call(web.URL+"/mcp", "greet", `{"name":"Ada","loud":true}`))
	fmt.Println(call(web.URL+"/mcp", "greet", `{"nam":"Ada"}`))
	// Output:
	// HELLO, ADA.
	// invalid_arguments: nam: unknown argument, did you mean "name"?
	// name: required, expected a string of at least 1 character
}

// One host at several doors: each client has a state of its own.
func ExampleServer_ServeUnix() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := gatehouse.New(
		gatehouse.WithWorkspaceRoot(dir),
		gatehouse.WithReadOnly(),
		gatehouse.WithInfo("library", "1.2.3"),
	)
	if err != nil {
		log.Fatal(err)
	}
	socket := filepath.Join(dir, "door", "library.sock")
	served := make(chan error, 1)
	go func() { served <- s.ServeUnix(context.Background(), socket) }()

	fmt.Println(hello(socket))
	fmt.Println(s.Shutdown(context.Background()), <-served)
	// Output:
	// library 1.2.3
	// <nil> <nil>
}

// Without restriction is possible, and said.
func ExampleWithWorkspaceRoot_unrestricted() {
	plain := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	s, err := gatehouse.New(gatehouse.WithWorkspaceRoot(""), gatehouse.WithLogger(plain))
	if err != nil {
		log.Fatal(err)
	}
	s.Shutdown(context.Background())
	// Output: level=WARN msg="unrestricted: the tools can touch every file this user can; name folders with WithWorkspaceRoot instead"
}

// offering is a module that offers these tools and nothing else.
func offering(tools ...tool.Tool) module.New {
	return func(context.Context, module.Deps) (module.Module, error) { return fixed{tools}, nil }
}

type fixed struct{ tools []tool.Tool }

func (f fixed) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: f.tools}, nil
}

func (fixed) Close(context.Context) error { return nil }

// call posts one request of the newest revision and gives the text of its
// result.
func call(url, name, args string) string {
	const envelope = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	body := fmt.Sprintf(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,%s}}`,
		name,
		args,
		envelope,
	)
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name,
	} {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal(answer, &m); err != nil || len(m.Result.Content) == 0 {
		return string(answer)
	}
	return m.Result.Content[0].Text
}

// hello shakes hands over a socket and says who answered.
func hello(socket string) string {
	var conn net.Conn
	for range 6000 { // until the door is open
		c, err := net.Dial("unix", socket)
		if err == nil {
			conn = c
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if conn == nil {
		return "nobody there"
	}
	defer conn.Close()
	fmt.Fprintln(conn, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return err.Error()
	}
	var m struct {
		Result struct {
			Info struct{ Name, Version string } `json:"serverInfo"`
		}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return err.Error()
	}
	return m.Result.Info.Name + " " + m.Result.Info.Version
}
