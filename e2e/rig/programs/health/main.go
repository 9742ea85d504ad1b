// Health prints what Flux and Argo CD see of each object that it reads, one JSON object a line: the status by kstatus, and the
// health by the script in the file of the first argument.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
)

type verdict struct {
	Kstatus string `json:"kstatus"`
	Argo    string `json:"status"`
	Message string `json:"message"`
}

// As `runLua` of Argo CD 3.6 (util/lua) does: three libraries, a second of time, and the object as `obj`.
func health(object map[string]any, script string, found *verdict) error {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	} {
		opening := lua.P{Fn: state.NewFunction(open), Protect: true}
		if err := state.CallByParam(opening, lua.LString(name)); err != nil {
			return err
		}
	}
	limited, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", luajson.DecodeValue(state, object))
	if err := state.DoString(script); err != nil {
		return err
	}
	answer, err := luajson.Encode(state.Get(-1))
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, found)
}

func judged(line []byte, script string) (*verdict, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(line); err != nil {
		return nil, err
	}
	result, err := status.Compute(object)
	if err != nil {
		return nil, err
	}
	found := &verdict{Kstatus: string(result.Status)}
	var plain map[string]any // numbers as floats, which Lua has
	if err := json.Unmarshal(line, &plain); err != nil {
		return nil, err
	}
	return found, health(plain, script, found)
}

func main() {
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<22)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		found, err := judged(lines.Bytes(), string(script))
		if err == nil {
			err = answers.Encode(found)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}
