package conformance

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

//go:embed tasks.schema.json
var tasksSchema []byte

// schemas are the definitions of one revision.
type schemas struct {
	revision string
	key      string                     // where the definitions are: $defs or definitions
	defs     map[string]json.RawMessage // by name
	methods  map[string]string          // method -> definition of the request or notification
	results  map[string]string          // method -> definition of the result
	errors   map[int]string             // code -> definition of the error response

	mu       sync.Mutex // guards compiled
	compiled map[string]*jsonschema.Resolved
}

// shape contains the members of a definition by which it is sorted.
type shape struct {
	Properties struct {
		Method struct{ Const string }
		Error  struct {
			AllOf []struct {
				Properties struct{ Code struct{ Const int } }
			} `json:"allOf"`
		}
	}
}

func readSchemas(dir, revision string) (*schemas, error) {
	b, err := os.ReadFile(filepath.Join(dir, revision+".json"))
	if err != nil {
		return nil, err
	}
	s := &schemas{
		revision: revision,
		methods:  map[string]string{},
		results:  map[string]string{},
		errors:   map[int]string{},
		compiled: map[string]*jsonschema.Resolved{},
	}
	if err := s.take(b); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", revision, err)
	}
	if revision == modernRevision {
		if err := s.takeTasks(); err != nil {
			return nil, fmt.Errorf("schema of the tasks extension: %w", err)
		}
	}
	return s, nil
}

func (s *schemas) take(b []byte) error {
	var root map[string]json.RawMessage
	if err := json.Unmarshal(b, &root); err != nil {
		return err
	}
	s.key = "$defs"
	if root[s.key] == nil {
		s.key = "definitions"
	}
	if err := json.Unmarshal(root[s.key], &s.defs); err != nil {
		return err
	}
	if err := s.allowFractions(); err != nil {
		return err
	}
	for name, def := range s.defs {
		if err := s.file(name, def); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// file records what a definition is for. Unions of all messages of one side are not used, because a message is
// compared with its own definition.
func (s *schemas) file(name string, def json.RawMessage) error {
	if strings.HasPrefix(name, "Client") || strings.HasPrefix(name, "Server") {
		return nil
	}
	var d shape
	if err := json.Unmarshal(def, &d); err != nil {
		return nil // not an object schema: no message either
	}
	if m := d.Properties.Method.Const; m != "" {
		s.methods[m] = name
		if base, ok := strings.CutSuffix(name, "Request"); ok && s.defs[base+"Result"] != nil {
			s.results[m] = base + "Result"
		}
	}
	for _, part := range d.Properties.Error.AllOf {
		if c := part.Properties.Code.Const; c != 0 {
			s.errors[c] = name
		}
	}
	return nil
}

// allowFractions corrects an error of the published schemas, as the suite does: they require integers for the
// limits and the default of a number field.
func (s *schemas) allowFractions() error {
	if s.revision != "2025-06-18" && s.revision != "2025-11-25" {
		return nil
	}
	var d map[string]any
	if err := json.Unmarshal(s.defs["NumberSchema"], &d); err != nil {
		return err
	}
	properties, _ := d["properties"].(map[string]any)
	for _, name := range []string{"minimum", "maximum", "default"} {
		if p, ok := properties[name].(map[string]any); ok && p["type"] == "integer" {
			p["type"] = "number"
		}
	}
	b, err := json.Marshal(d)
	s.defs["NumberSchema"] = b
	return err
}

func (s *schemas) takeTasks() error {
	var root struct {
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal(tasksSchema, &root); err != nil {
		return err
	}
	for name, def := range root.Defs {
		if s.defs[name] != nil {
			return fmt.Errorf("%s is defined twice", name)
		}
		s.defs[name] = def
	}
	s.methods["notifications/tasks"] = "TaskNotification"
	s.results["tasks/get"] = "GetTaskResult"
	s.results["tasks/update"] = "TaskAck"
	s.results["tasks/cancel"] = "TaskAck"
	return nil
}

// kind returns the definition of a whole message.
func (s *schemas) kind(e envelope, answers string) string {
	switch {
	case e.Method != "":
		if name := s.methods[e.Method]; name != "" {
			return name
		}
		if e.ID != nil {
			return "JSONRPCRequest"
		}
		return "JSONRPCNotification"
	case e.Error != nil:
		if name := s.errors[e.Error.Code]; name != "" {
			return name
		}
		return s.either("JSONRPCErrorResponse", "JSONRPCError")
	default:
		return s.either("JSONRPCResultResponse", "JSONRPCResponse")
	}
}

// resultKind returns the definition of a response's result; "" if there is none.
func (s *schemas) resultKind(e envelope, answers string) string {
	switch {
	case s.revision == modernRevision && e.Result.ResultType == "input_required":
		return "InputRequiredResult"
	case s.revision == modernRevision && e.Result.ResultType == "task",
		s.revision == "2025-11-25" && answers == "tools/call" && e.Result.Task != nil:
		return "CreateTaskResult"
	}
	return s.results[answers]
}

func (s *schemas) either(newer, older string) string {
	if s.defs[newer] != nil {
		return newer
	}
	return older
}

func (s *schemas) validate(def string, msg []byte) error {
	r, err := s.compile(def)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(msg, &v); err != nil {
		return err
	}
	return r.Validate(v)
}

func (s *schemas) compile(def string) (*jsonschema.Resolved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.compiled[def]; r != nil {
		return r, nil
	}
	b, err := json.Marshal(map[string]any{"$ref": "#/" + s.key + "/" + def, s.key: s.defs})
	if err != nil {
		return nil, err
	}
	var root jsonschema.Schema
	if err := json.Unmarshal(b, &root); err != nil {
		return nil, fmt.Errorf("compile %s of %s: %w", def, s.revision, err)
	}
	r, err := root.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("compile %s of %s: %w", def, s.revision, err)
	}
	s.compiled[def] = r
	return r, nil
}
