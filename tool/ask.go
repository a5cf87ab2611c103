package tool

import "encoding/json"

// Elicit asks the person behind the client to fill in a form. The schema is a
// flat JSON Schema object of primitive members.
func Elicit(key, message string, schema json.RawMessage) Question {
	return question(key, "elicitation/create", struct {
		Message string          `json:"message"`
		Schema  json.RawMessage `json:"requestedSchema"`
	}{message, schema})
}

// ElicitURL asks the person behind the client to visit an address. The answer
// says whether they agreed to, not what happened there.
func ElicitURL(key, message, url string) Question {
	return question(key, "elicitation/create", struct {
		Mode    string `json:"mode"`
		Message string `json:"message"`
		URL     string `json:"url"`
		ID      string `json:"elicitationId"`
	}{"url", message, url, key})
}

// Sample asks the client's model for a completion; params are those of
// sampling/createMessage.
func Sample(key string, params any) Question {
	return question(key, "sampling/createMessage", params)
}

// ListRoots asks which folders the client works in.
func ListRoots(key string) Question { return question(key, "roots/list", struct{}{}) }

func question(key, method string, params any) Question {
	b, err := json.Marshal(params)
	if err != nil {
		panic(
			"tool: question " + key + ": " + err.Error(),
		) // a programmer's mistake: params are the handler's own types
	}
	return Question{Key: key, Method: method, Params: b}
}

// Needs returns the abilities that a client needs to answer the question, and their names as
// the value of requiredCapabilities in the protocol's error. It returns 0 for a method
// that no revision knows.
func (q Question) Needs() (Abilities, string) {
	switch q.Method {
	case "elicitation/create":
		var p struct {
			Mode string `json:"mode"`
		}
		if json.Unmarshal(q.Params, &p) == nil && p.Mode == "url" {
			return CanElicitURL, `{"elicitation":{"url":{}}}`
		}
		return CanElicit, `{"elicitation":{"form":{}}}`
	case "sampling/createMessage":
		var p struct {
			Tools json.RawMessage `json:"tools"`
		}
		if json.Unmarshal(q.Params, &p) == nil && len(p.Tools) > 0 {
			return CanSample | CanSampleTools, `{"sampling":{"tools":{}}}`
		}
		return CanSample, `{"sampling":{}}`
	case "roots/list":
		return CanListRoots, `{"roots":{}}`
	}
	return 0, "{}"
}

// Elicited decodes the answer to an Elicit or ElicitURL question. Action is
// accept, decline or cancel; into is filled only on accept and may be nil.
func Elicited(a Answer, into any) (action string, err error) {
	var r struct {
		Action  string          `json:"action"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(a, &r); err != nil {
		return "", err
	}
	if r.Action == "accept" && into != nil && len(r.Content) > 0 {
		err = json.Unmarshal(r.Content, into)
	}
	return r.Action, err
}
